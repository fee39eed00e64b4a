"""Master keys, which only control planes hold, and the data keys that they wrap. SPEC [X1], [C5].

A master key file has a line for each version: its number, then 32 bytes in base64. The highest one wraps; every one unwraps, so that a
new one can be added before what is wrapped by the old ones is wrapped again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from helmr.control.store.pool import Connection
from helmr.control.store.queries import saves
from helmr.objects.saves import SaveKeys
from helmr.protocol.errors import MasterKeyMismatch, MasterKeyUnusable

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_PROOF: Final = b"helmr master key"
_MEMORY: Final = b"helmr memory image"

Purpose = Literal["computer", "names"]


class Keyring:
    """The master keys by version. They appear in no text that is made of this value."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys.values()):
            raise MasterKeyUnusable(f"A master key has {KEY_BYTES} bytes.")
        self._keys = dict(keys)
        self.version = max(keys)
        """The version that wraps."""

    def wrap(self, key: bytes, context: str) -> bytes:
        """The data key, encrypted by the newest master key; it opens for the same `context` only."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._keys[self.version]).encrypt(nonce, key, context.encode())

    def unwrap(self, wrapped: bytes, version: int, context: str) -> bytes:
        """The data key. Raises `MasterKeyMismatch` without that version, or when another key wrapped it."""
        master = self._keys.get(version)
        if master is None:
            raise MasterKeyMismatch(f"Version {version} of the master key is not here.")
        try:
            return AESGCM(master).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], context.encode())
        except InvalidTag as error:
            raise MasterKeyMismatch() from error

    async def prove(self, connection: Connection) -> None:
        """Raise `MasterKeyMismatch` unless these are the keys of this database's other control planes; the first one decides."""
        for version, key in self._keys.items():
            await saves.prove_master(connection, version=version, proof=_proof(key))
        for row in await saves.master_proofs(connection):
            key = self._keys.get(row["version"])
            if key is None or not hmac.compare_digest(row["proof"], _proof(key)):
                raise MasterKeyMismatch(version=row["version"])

    async def data_key(self, connection: Connection, owner_id: str, purpose: Purpose) -> bytes:
        """The key of a Computer or of an Environment's names, made when missing."""
        context = f"{purpose}:{owner_id}"
        row = await saves.data_key(connection, owner_id=owner_id, purpose=purpose)
        if row is None:
            wrapped = self.wrap(secrets.token_bytes(KEY_BYTES), context)
            await saves.insert_data_key(connection, owner_id=owner_id, purpose=purpose, wrapped=wrapped, master_version=self.version)
            row = await saves.data_key(connection, owner_id=owner_id, purpose=purpose)
        return self.unwrap(row["wrapped"], row["master_version"], context)

    async def memory_key(self, connection: Connection, computer_id: str) -> bytes:
        """What opens images of a Computer's memory: of its data key, which can't be told from it."""
        return hmac.digest(await self.data_key(connection, computer_id, "computer"), _MEMORY, hashlib.sha256)

    async def save_keys(self, connection: Connection, computer_id: str, environment_id: str) -> SaveKeys:
        """What opens the saves of a Computer."""
        data = await self.data_key(connection, computer_id, "computer")
        return SaveKeys(data=data, names=await self.data_key(connection, environment_id, "names"))


def read_keyring(file: Path) -> Keyring:
    """Raises `MasterKeyUnusable` for a file that isn't there, that others may read, or that has another form."""
    try:
        with file.open(encoding="ascii") as reading:
            mode = os.fstat(reading.fileno()).st_mode
            lines = reading.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MasterKeyUnusable(f"The master key file {file} can't be read: {error}.") from error
    if stat.S_IMODE(mode) & 0o077:
        raise MasterKeyUnusable(f"Others than its owner may read the master key file {file}.", hint=f"chmod 600 {file}")
    keys: dict[int, bytes] = {}
    for line in filter(None, map(str.strip, lines)):
        number, _, text = line.partition(" ")
        try:
            keys[int(number)] = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise MasterKeyUnusable(f"A line of {file} is no version and key in base64.") from None
    return Keyring(keys)


def keep_keyring(file: Path) -> Keyring:
    """Read the file, made with a new key when it isn't there; starts at the same time agree on one. Raises `MasterKeyUnusable`."""
    if not file.exists():
        draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as writing:
                writing.write(b"1 " + base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
                writing.flush()
                os.fsync(writing.fileno())
            try:
                os.link(draft, file)
            except FileExistsError:
                pass  # another start was first
            finally:
                draft.unlink()
        except OSError as error:
            raise MasterKeyUnusable(f"The master key file {file} can't be made: {error}.") from error
    return read_keyring(file)


def _proof(key: bytes) -> bytes:
    return hmac.new(key, _PROOF, hashlib.sha256).digest()
