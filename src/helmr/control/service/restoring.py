"""Computers whose host is given up, made again elsewhere from their last save. SPEC [C5], I8, UD-40.

unavailable --begin--> restoring --ran--> running, restoring --give back--> unavailable, cold    (drawn in docs/reference/state-machines.md)

From the commit of `begin` on whatever the lost host has is stale, by its fence; its files are destroyed once the Computer runs elsewhere,
and are the Computer's again should that not work out. What the save doesn't have is held against each Session that lost it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from helmr.control.domain.trees import decide_hold
from helmr.control.service import render, stops
from helmr.control.service.core import Core, Effects, notify_worker, record
from helmr.control.service.saves import Saves
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, processes, saves, sessions
from helmr.protocol import jsontext
from helmr.protocol.ids import new_id

RESTORE_SECONDS: Final = 1800.0
SYSTEM: Final = {"kind": "system", "id": "helmr"}


class Restoring:
    def __init__(self, core: Core, taken: Saves) -> None:
        self._core = core
        self._saves = taken

    async def begin(self, connection: Connection, effects: Effects, computer: Any, worker_id: Any, *, save_id: Any) -> None:
        """Have another worker make a locked Computer's files from a save; None: with none, as its Template says."""
        await saves.begin_restore(connection, id=computer["id"], worker_id=worker_id, save_id=save_id, seconds=RESTORE_SECONDS)
        effects.computers.add(str(computer["id"]))
        await notify_worker(connection, effects, computer["id"])

    async def order(self, connection: Connection, computer: Any) -> dict[str, Any] | None:
        """What `computer.start` says of the save that is to be restored."""
        if computer["restore_id"] is None:
            return None
        save = await saves.save_row(connection, id=computer["restore_id"])
        keys = await self._saves.keys(connection, str(computer["id"]), str(computer["environment_id"]))
        return {"save": str(save["id"]), "manifest": save["manifest"], "packs": list(save["packs"]), "keys": keys}

    async def ran(self, computer_id: str, fence: int) -> bool:
        """The worker says that a restoring Computer runs: who lost Turns is held before anything runs. False for an older placement."""

        async def work(connection: Connection, effects: Effects) -> bool:
            members = await computers.members_to_lock(connection, computer_id=computer_id)
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["fence"] != fence or computer["status"] == "deleted" or computer["residency"] != "restoring":
                return False
            save = await saves.save_row(connection, id=computer["restore_id"]) if computer["restore_id"] is not None else None
            marks = {row["session_id"]: row["settled_turn"] for row in await saves.marks(connection, save_id=save["id"])} if save else {}
            await saves.restored(connection, id=computer_id)
            await self._tell(connection, effects, members, computer, save)
            for member in members:
                await self._hold_gap(connection, effects, member, save, marks.get(member["id"], 0))
            effects.places.update(str(row["id"]) for row in members)
            return True

        return await self._core.write("restored", work)

    async def give_back(self, connection: Connection, computer: Any, error: dict[str, Any]) -> None:
        """It could not be made again: the Computer is its lost host's as before. A save that is no good is not tried again."""
        if error.get("code") == "save_damaged" and computer["restore_id"] is not None:
            await saves.fail_save(connection, id=computer["restore_id"], error=jsontext.dumps(error))
            newest = await saves.newest_complete(connection, computer_id=computer["id"])
            await saves.set_newest(connection, id=computer["id"], save_id=newest)
        await saves.give_back(connection, id=computer["id"], error=jsontext.dumps(error))

    async def _tell(self, connection: Connection, effects: Effects, members: Sequence[Any], computer: Any, save: Any) -> None:
        now = await sessions.now(connection)
        facts: dict[str, Any] = {"computer_id": str(computer["id"]), "kept": [], "lost": ["memory", "files"]}
        if save is not None:
            age = max(0.0, (now - save["started_at"]).total_seconds())
            facts |= {"kept": ["files"], "lost": ["memory"], "save_id": str(save["id"]), "saved_at": render.time_text(save["started_at"])}
            facts |= {"age_seconds": round(age, 3), "files": save["files"], "bytes": save["bytes"]}
        began = computer["deadline_at"].timestamp() - RESTORE_SECONDS
        facts["seconds"] = round(max(0.0, now.timestamp() - began), 3)
        for row in members:
            if row["status"] != "closed":
                await record(connection, effects, str(row["id"]), [(None, "computer.restored", render.data(**facts))])
                if row["initialised"]:
                    await processes.remember_reason(connection, id=row["id"], recovery_reason="restored_from_save")

    async def _hold_gap(self, connection: Connection, effects: Effects, session: Any, save: Any, settled: int) -> None:
        """Hold a Session that has a completed Turn above the save's mark, and name the first and the last of those."""
        if session["status"] == "closed":
            return
        lost = await saves.lost_turns(connection, session_id=session["id"], after=settled)
        if lost["first"] is None:
            return
        gap: dict[str, Any] = {"first_turn_sequence": lost["first"], "last_turn_sequence": lost["last"]}
        if save is not None:
            gap |= {"save_id": str(save["id"]), "saved_at": render.time_text(save["started_at"])}
        change = decide_hold([stops.node_of(session)], session["id"])
        await stops.place_hold(connection, effects, session["id"], "recovery_gap", change.holds, SYSTEM, hold_id=new_id(), gap=gap)
        for blocked in change.cancel_queued:
            await stops.cancel_queued(connection, effects, blocked)
        effects.finishes.add(str(session["root_session_id"]))
