"""The port of blob stores. A blob is bytes named by their SHA-256 in lower-case hex, so it never changes once it is there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Final, Protocol

from helmr.protocol.errors import InvalidValue

CHUNK: Final = 1 << 18
"""How many bytes are read or written at once."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: object) -> bool:
    """Whether `text` has the form of a blob's name."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """`text` if it has the form of a blob's name; raises `InvalidValue` otherwise, so that no store ever makes a path of it."""
    if not is_digest(text):
        raise InvalidValue(f"{text[:80]!r} is no digest: 64 lower-case hexadecimal digits are.")
    return text


class BlobStore(Protocol):
    """Where blobs lie. Every method raises `InvalidValue` for a name that is no digest.

    A blob is either wholly there or not at all: not for a moment, and not after a crash of the writer, can a part of one be seen.
    Concurrent writers of the same blob do no harm.
    """

    async def put(self, data: bytes | AsyncIterable[bytes], digest: str | None = None, *, limit: int | None = None) -> str:
        """Store and return the digest; durable when it returns.

        Raises `DigestMismatch` when the bytes are others than `digest` names and `ContentLimitExceeded` past `limit` bytes; nothing is
        stored then. What `data` raises passes through.
        """
        ...

    async def exists(self, digest: str) -> bool:
        """Whether the blob is here."""
        ...

    def open(self, digest: str) -> AsyncIterator[bytes]:
        """The bytes in chunks. Raises `BlobNotFound` at the first one."""
        ...

    async def path(self, digest: str) -> Path:
        """A local file with the bytes, to be read or linked and never written. Raises `BlobNotFound`."""
        ...

    async def size(self, digest: str) -> int:
        """How many bytes it has. Raises `BlobNotFound`."""
        ...

    async def delete(self, digest: str) -> bool:
        """Remove it; whether it was here. Who reads it already can finish."""
        ...

    def iterate(self) -> AsyncIterator[str]:
        """All digests, in no order; blobs that come or go meanwhile may be missed."""
        ...
