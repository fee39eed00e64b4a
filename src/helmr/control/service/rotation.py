"""A new master key in the place of the old one, while control planes serve. SPEC [X1].

    added to a file -> in every control plane's file, each restarted -> made active: it wraps -> all is wrapped anew -> the old one retired

Each step may be repeated, and taken up where it was left: what is wrapped anew is committed in batches, and either version opens it all.
Data keys stay what they are; only what wraps them changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from helmr.control.service.faults import fault_point
from helmr.control.service.keyring import Keyring
from helmr.control.service.vault import context_of
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import masterkeys, secrets
from helmr.protocol.errors import MasterKeyMismatch

BATCH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """`rewrapped` counts data keys; `unused` are versions that wrap nothing any more."""

    version: int
    rewrapped: int
    unused: tuple[int, ...]


class Rotation:
    def __init__(self, database: Database, keyring: Keyring) -> None:
        self._database = database
        self._keyring = keyring

    async def run(self, on_batch: Callable[[int], None] = lambda count: None) -> Rotated:
        """Make the newest version that is here the one that wraps, and wrap everything by it. Told of each batch.

        Raises `MasterKeyMismatch` while a control plane that lives does not have it.
        """
        version = self._keyring.versions[-1]
        await self._database.run(lambda connection: self._activate(connection, version))
        rewrapped = 0
        for rewrap in (self._data_keys, self._secrets):
            while count := await self._database.run(lambda connection, rewrap=rewrap: rewrap(connection, version)):
                rewrapped += count
                on_batch(rewrapped)
                fault_point("after_commit:rewrap")
        return Rotated(version=version, rewrapped=rewrapped, unused=await self._unused(version))

    async def retire(self) -> tuple[int, ...]:
        """Forget the versions that wrap nothing any more; which those are. They may be removed from the files then."""

        async def work(connection: Connection) -> tuple[int, ...]:
            wraps = await masterkeys.wrapping_version(connection)
            unused = await self._unused_in(connection, wraps)
            for version in unused:
                await masterkeys.retire(connection, version=version)
            return unused

        return await self._database.run(work)

    async def _activate(self, connection: Connection, version: int) -> None:
        await self._keyring.prove(connection)
        without = await masterkeys.planes_without(connection, version=version)
        if without:
            raise MasterKeyMismatch(
                f"{without} control planes that run don't have version {version} of the master key.",
                hint="Copy the file to each of them, and restart it; then run this again.",
            )
        await masterkeys.activate(connection, version=version)

    async def _data_keys(self, connection: Connection, version: int) -> int:
        rows = await masterkeys.keys_to_rewrap(connection, master_version=version, count=BATCH)
        for row in rows:
            context = f"{row['purpose']}:{row['owner_id']}"
            wrapped = self._keyring.wrap(self._keyring.unwrap(row["wrapped"], row["master_version"], context), version, context)
            await masterkeys.rewrap_key(
                connection, owner_id=row["owner_id"], purpose=row["purpose"], wrapped=wrapped, master_version=version
            )
        return len(rows)

    async def _secrets(self, connection: Connection, version: int) -> int:
        rows = await secrets.versions_to_rewrap(connection, master_version=version, count=BATCH)
        for row in rows:
            context = context_of(str(row["secret_id"]), row["version"])
            wrapped = self._keyring.wrap(self._keyring.unwrap(row["wrapped"], row["master_version"], context), version, context)
            await secrets.rewrap_version(
                connection, secret_id=row["secret_id"], version=row["version"], wrapped=wrapped, master_version=version
            )
        return len(rows)

    async def _unused(self, wraps: int) -> tuple[int, ...]:
        async def work(connection: Connection) -> tuple[int, ...]:
            return await self._unused_in(connection, wraps)

        return await self._database.run(work)

    @staticmethod
    async def _unused_in(connection: Connection, wraps: int) -> tuple[int, ...]:
        used = {row["version"] for row in await masterkeys.used_versions(connection)} | {wraps}
        known = {row["version"] for row in await masterkeys.master_proofs(connection)}
        return tuple(sorted(version for version in known - used if version < wraps))
