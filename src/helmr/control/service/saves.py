"""Saves of Computers' files: when they are due, one at a time for each Computer, and what their workers say of them. SPEC [C5], I9.

taking --saved--> complete --(a newer one)--> deleted, taking --failed--> failed        (drawn in docs/reference/state-machines.md)

A save begins with a commit that notes which Turns have settled: what those did is on the disk by then, and the worker reads the disk later.
It is told to take it on each link until it has said what became of it. Nothing waits for a save but the next one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, Literal

import structlog

from helmr.control.service.core import Core, Effects, notify_worker
from helmr.control.service.keyring import Keyring
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, saves
from helmr.objects.store import is_digest
from helmr.protocol import jsontext
from helmr.protocol.ids import new_id
from helmr.protocol.limits import WORKER_LOST_SECONDS
from helmr.protocol.states import SaveCause

SAVE_AFTER_SECONDS: Final = 30.0
"""How long after a Turn has settled its Computer is saved, so that several Turns share a save."""
TAKING_SECONDS: Final = 1800.0
OUTDATED_SECONDS: Final = 60.0
"""A Computer that has run for so long since its newest save is saved once more before it sleeps."""
RETRY_SECONDS: Final = 900.0
"""The longest wait before a save that failed is tried again."""
KEPT_SECONDS: Final = 900.0
"""How long packs that no save needs any more are kept at least."""
MOST_PACKS: Final = 100_000

Begun = Literal["begun", "taking", "not_now"]

log = structlog.get_logger("helmr.saves")


class Saves:
    def __init__(self, core: Core, keyring: Keyring | None, *, after_seconds: float = SAVE_AFTER_SECONDS) -> None:
        self._core = core
        self._keyring = keyring
        self._after_seconds = after_seconds

    @property
    def kept(self) -> bool:
        """Whether there are saves at all: a control plane without a master key takes none."""
        return self._keyring is not None

    async def begin(self, computer_id: str, cause: SaveCause, *, unsaved: bool = False) -> Begun:
        """Have the Computer saved; with `unsaved` only if a Turn has settled, or something ended, that is in no save.

        Before a sleep also if it has run for a while since: its processes may have written by themselves.

        taking: a save of it is under way; not_now: it is nowhere, on its way, being deleted, or has nothing to save.
        """

        async def work(connection: Connection, effects: Effects) -> Begun:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or (unsaved and not await self._is_unsaved(connection, computer_id, cause)):
                return "not_now"
            return await self.begin_locked(connection, effects, computer, cause)

        return await self._core.write("begin_save", work)

    async def _is_unsaved(self, connection: Connection, computer_id: str, cause: SaveCause) -> bool:
        if await saves.is_unsaved(connection, id=computer_id):
            return True
        return cause == "hibernate" and bool(await saves.is_outdated(connection, id=computer_id, seconds=OUTDATED_SECONDS))

    async def begin_locked(self, connection: Connection, effects: Effects, computer: Any, cause: SaveCause) -> Begun:
        """The same within a transaction that holds the Computer's lock."""
        if not self.kept or computer["status"] != "available" or computer["worker_id"] is None:
            return "not_now"
        if computer["residency"] not in ("running", "hibernated", "cold"):
            return "not_now"
        under_way = await saves.taking(connection, computer_id=computer["id"])
        if under_way is not None and under_way["fence"] == computer["fence"]:
            return "taking"
        if under_way is not None:  # of an earlier placement: nobody may commit it any more
            await self._failed(connection, under_way, {"code": "save_outdated", "message": "The Computer has moved on."})
        save_id = new_id()
        await saves.insert_save(
            connection,
            id=save_id,
            computer_id=computer["id"],
            worker_id=computer["worker_id"],
            fence=computer["fence"],
            cause=cause,
            previous_id=computer["save_id"],
            seconds=TAKING_SECONDS,
        )
        await saves.insert_marks(connection, id=save_id, computer_id=computer["id"])
        await saves.save_begun(connection, id=computer["id"])
        effects.computers.add(str(computer["id"]))
        await notify_worker(connection, effects, computer["id"])
        return "begun"

    async def begin_due(self, count: int) -> bool:
        """Look for what should be saved, begin what is due; whether there may be more."""
        if not self.kept:
            return False
        async with self._core.database.connection() as connection:
            for row in await saves.unsaved(connection, seconds=self._after_seconds, count=count):
                await saves.set_save_due(connection, id=row["id"], due_at=row["due_at"])
            due = await saves.saves_due(connection, count=count)
        begun = [await self.begin(str(row["id"]), "turn") for row in due]
        return len(due) == count and "begun" in begun

    async def begin_on(self, worker_id: str) -> None:
        """Save what isn't saved of a worker that drains."""
        if not self.kept:
            return
        async with self._core.database.connection() as connection:
            rows = await saves.unsaved_on(connection, worker_id=worker_id)
        for row in rows:
            await self.begin(str(row["id"]), "drain", unsaved=True)

    async def end_overdue(self, count: int) -> None:
        """Give up saves of which nobody will say what became."""
        async with self._core.database.connection() as connection:
            rows = await saves.saves_overdue(connection, seconds=WORKER_LOST_SECONDS, count=count)
        for row in rows:
            error = {"code": "save_overdue", "message": "The save did not end in time, or its worker was lost."}
            await self.failed(str(row["computer_id"]), str(row["id"]), error)

    # --- what workers are told, and say -----------------------------------------------------------------------------------------

    async def orders(self, worker_id: str, computer_id: str | None = None) -> list[dict[str, Any]]:
        """What a worker should be told of saves that it is to take: members of `computer.save`."""
        if self._keyring is None:
            return []
        async with self._core.database.connection() as connection:
            rows = await saves.orders(connection, worker_id=worker_id, computer_id=computer_id)
            return [
                {
                    "computer": str(row["computer_id"]),
                    "fence": row["fence"],
                    "save": str(row["id"]),
                    "previous": row["previous_manifest"],
                    "keys": await self.keys(connection, str(row["computer_id"]), str(row["environment_id"])),
                }
                for row in rows
            ]

    async def saved(self, said: Mapping[str, Any]) -> bool:
        """A worker's `computer.saved`. False when it speaks of a save or a placement that is over: nothing changes then."""
        computer_id, save_id = str(said["computer"]), str(said["save"])
        if said.get("error") is not None:
            return await self.failed(computer_id, save_id, dict(said["error"]))
        manifest, packs = said["manifest"], [str(name) for name in said["packs"]]
        if not is_digest(manifest) or not all(map(is_digest, packs)) or len(packs) > MOST_PACKS:
            return await self.failed(computer_id, save_id, {"code": "save_malformed", "message": "The worker's report makes no sense."})

        async def work(connection: Connection, effects: Effects) -> bool:
            computer = await computers.lock_computer(connection, id=computer_id)
            save = await saves.save_row(connection, id=save_id)
            if computer is None or save is None or str(save["computer_id"]) != computer_id or save["state"] != "taking":
                return False
            if computer["fence"] != save["fence"] or computer["status"] != "available":
                await self._failed(connection, save, {"code": "save_outdated", "message": "The Computer has moved on."})
                return False
            await saves.complete_save(
                connection,
                id=save_id,
                manifest=manifest,
                packs=packs,
                generation=said.get("generation"),
                files=int(said["files"]),
                bytes=int(said["bytes"]),
                new_bytes=int(said["new_bytes"]),
            )
            await saves.saved(connection, id=computer_id, save_id=save_id, seconds=KEPT_SECONDS)
            return True

        return await self._core.write("saved", work)

    async def failed(self, computer_id: str, save_id: str, error: dict[str, Any]) -> bool:
        """A save could not be taken; it is tried again later. False when it was over already."""

        async def work(connection: Connection, effects: Effects) -> bool:
            computer = await computers.lock_computer(connection, id=computer_id)
            save = await saves.save_row(connection, id=save_id)
            if computer is None or save is None or str(save["computer_id"]) != computer_id or save["state"] != "taking":
                return False
            await self._failed(connection, save, error)
            return True

        failed = await self._core.write("save_failed", work)
        if failed:
            log.warning("a save failed", computer=computer_id, save=save_id, error=error)
        return failed

    async def keys(self, connection: Connection, computer_id: str, environment_id: str) -> dict[str, str]:
        """What opens a Computer's saves, as its worker is told."""
        assert self._keyring is not None
        found = await self._keyring.save_keys(connection, computer_id, environment_id)
        return {"data": base64.b64encode(found.data).decode(), "names": base64.b64encode(found.names).decode()}

    async def memory_key(self, connection: Connection, computer_id: str) -> str | None:
        """What opens images of a Computer's memory, as its worker is told; None without a master key."""
        if self._keyring is None:
            return None
        return base64.b64encode(await self._keyring.memory_key(connection, computer_id)).decode()

    async def _failed(self, connection: Connection, save: Any, error: dict[str, Any]) -> None:
        await saves.fail_save(connection, id=save["id"], error=jsontext.dumps(error))
        await saves.not_saved(connection, id=save["computer_id"], most=RETRY_SECONDS, seconds=KEPT_SECONDS)
