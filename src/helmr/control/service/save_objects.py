"""Where saves lie: objects of a Computer, given to its worker alone, and collected once nobody needs them. SPEC [C5], [X1].

An object is `saves/COMPUTER/NAME`, a pack or a manifest by its digest. Workers hold no credential of the store: they go through here.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

import structlog
from blake3 import blake3

from helmr.control.service import render
from helmr.control.service.core import Core, Effects
from helmr.control.service.saves import KEPT_SECONDS
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, saves, sessions
from helmr.objects import ObjectStore
from helmr.objects.saves import StoredPack, Writing, packs_in, plan_collection
from helmr.objects.store import check_digest
from helmr.protocol.errors import ContentLimitExceeded, DigestMismatch, Forbidden, ObjectStoreUnusable, SaveDamaged
from helmr.protocol.limits import SAVE_OBJECT_BYTES

DELETED_AT_ONCE: Final = 1_000

log = structlog.get_logger("helmr.saves")


class SaveObjects:
    def __init__(self, core: Core, objects: ObjectStore | None) -> None:
        self._core = core
        self._objects = objects

    async def put(self, worker_id: str, computer_id: str, name: str, chunks: AsyncIterator[bytes]) -> None:
        """Store an object of a Computer that the worker saves now.

        Raises `Forbidden` when it doesn't, `DigestMismatch` for bytes of another name, `ContentLimitExceeded`, and `SaveDamaged` for a
        manifest some of whose packs are not here.
        """
        await self._check(saves.may_put, worker_id, computer_id)
        digest, size = blake3(), 0
        with await asyncio.to_thread(tempfile.NamedTemporaryFile, prefix="helmr-object-") as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > SAVE_OBJECT_BYTES:
                    raise ContentLimitExceeded(f"An object has at most {SAVE_OBJECT_BYTES} bytes.")
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(file.flush)
            if digest.hexdigest() != check_digest(name):
                raise DigestMismatch()
            await self._require_packs(computer_id, Path(file.name))
            await self._store().put(object_name(computer_id, name), Path(file.name))

    async def put_file(self, worker_id: str, computer_id: str, name: str, file: Path) -> None:
        """The same for a worker on this machine."""
        await self._check(saves.may_put, worker_id, computer_id)
        await self._require_packs(computer_id, file)
        await self._store().put(object_name(computer_id, check_digest(name)), file)

    async def get(self, worker_id: str, computer_id: str, name: str) -> BinaryIO:
        """An object of a Computer that the worker has; the caller closes the file. Raises `Forbidden`, `ObjectNotFound`."""
        await self._check(saves.may_get, worker_id, computer_id)
        return await self._store().get(object_name(computer_id, check_digest(name)))

    async def fetch(self, worker_id: str, computer_id: str, name: str, target: Path) -> None:
        """The same as the local file `target`, for a worker on this machine."""
        await self._check(saves.may_get, worker_id, computer_id)
        await self._store().fetch(object_name(computer_id, check_digest(name)), target)

    async def collect(self, count: int) -> bool:
        """Delete what no save needs of Computers where that may be; whether there may be more. Safe to be killed in, and to run twice."""
        if self._objects is None:
            return False
        async with self._core.database.connection() as connection:
            rows = await saves.to_collect(connection, count=count)
        left = [await self._collect(str(row["id"]), row["collect_at"]) for row in rows]
        return len(rows) == count or any(left)

    async def _collect(self, computer_id: str, seen: Any) -> bool:
        """One Computer; whether something to delete is left. What is to go is decided, and no save needs it, before anything goes."""
        stored = [entry async for entry in self._store().list(f"saves/{computer_id}/")]

        async def decide(connection: Connection, effects: Effects) -> tuple[frozenset[str], bool]:
            computer = await computers.lock_computer(connection, id=computer_id)
            keep = [id for id in (computer["save_id"], computer["restore_id"]) if id is not None] if computer["status"] != "deleted" else []
            await saves.outdate(connection, computer_id=computer_id, keep=keep)
            await saves.drop_marks(connection, computer_id=computer_id)
            rows = await saves.kept_saves(connection, computer_id=computer_id)
            needed = {row["id"]: frozenset({row["manifest"], *row["packs"]}) for row in rows if row["state"] == "complete"}
            writing = [
                Writing(began_at=row["started_at"], base=needed.get(row["previous_id"], frozenset()))
                for row in rows
                if row["state"] == "taking"
            ]
            grace = timedelta(seconds=0 if computer["status"] == "deleted" else KEPT_SECONDS)
            packs = [StoredPack(name=entry.name.rpartition("/")[2], stored_at=entry.stored_at) for entry in stored]
            now = await sessions.now(connection)
            gone = plan_collection(needed.values(), packs, now, grace, writing=writing)
            needless = [pack.name for pack in packs if not any(pack.name in names for names in needed.values())]
            # Of a deleted one something may still have been on its way; of others what is young stays for now.
            return gone, bool(needless) if computer["status"] == "deleted" else not gone.issuperset(needless)

        gone, again = await self._core.write("collect_saves", decide)
        for name in sorted(gone)[:DELETED_AT_ONCE]:
            await self._store().delete(object_name(computer_id, name))
        more = len(gone) > DELETED_AT_ONCE
        if not more:
            async with self._core.database.connection() as connection:
                await saves.collected(connection, id=computer_id, seen=seen, again=KEPT_SECONDS if again else None)
        return more

    async def _require_packs(self, computer_id: str, file: Path) -> None:
        """A manifest is taken only when all that it needs is in the store: else its save would count as one, and couldn't be restored.

        Its new packs came before it; what is missing belonged to the save that it builds on, which is given up, so that the next save
        stores everything anew.
        """
        needed = await asyncio.to_thread(_packs_in, file)
        if not needed:
            return
        stored = {entry.name.rpartition("/")[2] async for entry in self._store().list(f"saves/{computer_id}/")}
        missing = needed - stored
        if not missing:
            return
        log.error("packs of a save are missing from the store", computer=computer_id, packs=len(missing), one=min(missing))
        message = f"{len(missing)} packs that it needs are not in the store, {min(missing)} for one."

        async def give_up(connection: Connection, effects: Effects) -> None:
            await computers.lock_computer(connection, id=computer_id)
            under_way = await saves.taking(connection, computer_id=computer_id)
            if under_way is not None and under_way["previous_id"] is not None:
                await saves.fail_save(connection, id=under_way["previous_id"], error=render.error(SaveDamaged.code, message))
                newest = await saves.newest_complete(connection, computer_id=computer_id)
                await saves.set_newest(connection, id=computer_id, save_id=newest)

        await self._core.write("save_incomplete", give_up)
        raise SaveDamaged(message)

    async def _check(self, allowed: Any, worker_id: str, computer_id: str) -> None:
        async with self._core.database.connection() as connection:
            if not await allowed(connection, computer_id=computer_id, worker_id=worker_id):
                raise Forbidden("This worker has no such Computer, or is to take no save of it.")

    def _store(self) -> ObjectStore:
        if self._objects is None:
            raise ObjectStoreUnusable("This control plane has no object store.")
        return self._objects


def _packs_in(file: Path) -> frozenset[str]:
    with file.open("rb") as opened:
        return packs_in(opened)


def object_name(computer_id: str, name: str) -> str:
    """Where an object of a Computer's saves lies."""
    return f"saves/{computer_id}/{name}"
