"""Keys of saves, and what they do to a chunk: name it, compress it, seal it [C5]."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final

import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from helmr.protocol.errors import SaveDamaged

KEY_BYTES: Final = 32
NAME_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_LEVEL: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SaveKeys:
    """`data` encrypts (one for each Computer), `names` names chunks (one for each Environment: equal bytes of two Environments have names
    that nobody can compare). 32 random bytes each; they appear in no text that is made of this value."""

    data: bytes
    names: bytes

    def __post_init__(self) -> None:
        if len(self.data) != KEY_BYTES or len(self.names) != KEY_BYTES:
            raise ValueError(f"A key of saves has {KEY_BYTES} bytes.")


class Sealer:
    """What the keys do. Safe under threads."""

    def __init__(self, keys: SaveKeys) -> None:
        self._names = keys.names
        self._cipher = AESGCM(keys.data)
        self._own = _Compressors()

    def name(self, content: bytes) -> bytes:
        """The keyed BLAKE3 of a chunk, which names it."""
        return blake3(content, key=self._names).digest()

    def seal(self, content: bytes, context: bytes) -> bytes:
        """Compressed and encrypted; it opens with the same `context` only."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, self._own.compressor.compress(content), context)

    def open(self, sealed: bytes, context: bytes, *, size: int | None = None, limit: int | None = None, what: str) -> bytes:
        """The content again, which has `size` bytes, or at most `limit`. Raises `SaveDamaged` naming `what`."""
        try:
            packed = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
        except (InvalidTag, ValueError) as error:
            raise SaveDamaged(f"{what} does not open with these keys: it is damaged, or another's.") from error
        try:
            length = zstandard.frame_content_size(packed)
            if length < 0 or (size is not None and length != size) or (limit is not None and length > limit):
                raise SaveDamaged(f"{what} has not the length that it should have.")
            return self._own.decompressor.decompress(packed)
        except zstandard.ZstdError as error:
            raise SaveDamaged(f"{what} can't be decompressed.") from error

    def open_chunk(self, sealed: bytes, name: bytes, size: int) -> bytes:
        """The content of the chunk `name`, whose name was made of the very same bytes. Raises `SaveDamaged`."""
        content = self.open(sealed, name, size=size, what=f"The chunk {name.hex()[:16]}")
        if self.name(content) != name:
            raise SaveDamaged(f"The chunk {name.hex()[:16]} holds other bytes than its name says.")
        return content


class _Compressors(threading.local):
    """One each for every thread: they keep a state."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()
