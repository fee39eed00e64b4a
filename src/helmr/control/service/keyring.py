"""Master keys, which only control planes hold, and the data keys that they wrap. SPEC [X1], [C5].

There are several versions of the master key (`keyfile.py`). Every one unwraps; the database says which one wraps,
the newest that is active, so that a new one can be added to the file of every control plane before any of them uses it (`rotation.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from helmr.control.store.pool import Connection
from helmr.control.store.queries import masterkeys, saves
from helmr.objects.saves import SaveKeys
from helmr.protocol.errors import MasterKeyMismatch, MasterKeyUnusable

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_PROOF: Final = b"helmr master key"
_MEMORY: Final = b"helmr memory image"
_PRINTS: Final = b"helmr secret prints"

Purpose = Literal["computer", "names"]


class Keyring:
    """The master keys by version. They appear in no text that is made of this value."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys.values()):
            raise MasterKeyUnusable(f"A master key has {KEY_BYTES} bytes.")
        self._keys = dict(keys)

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that are here, the oldest first."""
        return tuple(sorted(self._keys))

    def wrap(self, key: bytes, version: int, context: str) -> bytes:
        """The data key, encrypted by that master key; it opens for the same `context` only. Raises `MasterKeyMismatch` without it."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._master(version)).encrypt(nonce, key, context.encode())

    def unwrap(self, wrapped: bytes, version: int, context: str) -> bytes:
        """The data key. Raises `MasterKeyMismatch` without that version, or when another key wrapped it."""
        try:
            return AESGCM(self._master(version)).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], context.encode())
        except InvalidTag as error:
            raise MasterKeyMismatch() from error

    async def wrapping(self, connection: Connection) -> int:
        """The version that wraps now. Raises `MasterKeyMismatch` when it is not here."""
        version: int | None = await masterkeys.wrapping_version(connection)
        if version is None:
            await self.prove(connection)
            version = await masterkeys.wrapping_version(connection)
        assert version is not None
        self._master(version)
        return version

    async def prove(self, connection: Connection) -> None:
        """Raise `MasterKeyMismatch` unless these are the keys of this database's other control planes; the first one decides.

        One that was added elsewhere and does not wrap yet may be missing here.
        """
        for version, key in sorted(self._keys.items()):
            await masterkeys.prove_master(connection, version=version, proof=_proof(key))
        for row in await masterkeys.master_proofs(connection):
            key = self._keys.get(row["version"])
            if (key is None and row["active"]) or (key is not None and not hmac.compare_digest(row["proof"], _proof(key))):
                raise MasterKeyMismatch(version=row["version"])

    async def data_key(self, connection: Connection, owner_id: str, purpose: Purpose) -> bytes:
        """The key of a Computer or of an Environment's names, made when missing."""
        context = f"{purpose}:{owner_id}"
        row = await saves.data_key(connection, owner_id=owner_id, purpose=purpose)
        if row is None:
            version = await self.wrapping(connection)
            wrapped = self.wrap(secrets.token_bytes(KEY_BYTES), version, context)
            await saves.insert_data_key(connection, owner_id=owner_id, purpose=purpose, wrapped=wrapped, master_version=version)
            row = await saves.data_key(connection, owner_id=owner_id, purpose=purpose)
        return self.unwrap(row["wrapped"], row["master_version"], context)

    async def memory_key(self, connection: Connection, computer_id: str) -> bytes:
        """What opens images of a Computer's memory: of its data key, which can't be told from it."""
        return hmac.digest(await self.data_key(connection, computer_id, "computer"), _MEMORY, hashlib.sha256)

    async def save_keys(self, connection: Connection, computer_id: str, environment_id: str) -> SaveKeys:
        """What opens the saves of a Computer."""
        data = await self.data_key(connection, computer_id, "computer")
        return SaveKeys(data=data, names=await self.data_key(connection, environment_id, "names"))

    async def print_key(self, connection: Connection, environment_id: str) -> bytes:
        """What an Environment's values are made prints with, of which nobody without it can guess them [S4]."""
        return hmac.digest(await self.data_key(connection, environment_id, "names"), _PRINTS, hashlib.sha256)

    def _master(self, version: int) -> bytes:
        master = self._keys.get(version)
        if master is None:
            raise MasterKeyMismatch(f"Version {version} of the master key is not here.")
        return master


def _proof(key: bytes) -> bytes:
    return hmac.new(key, _PROOF, hashlib.sha256).digest()
