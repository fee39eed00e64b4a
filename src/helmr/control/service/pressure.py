"""Hosts whose disks are full begin nothing new: Sessions there are held, and go on by themselves when there is room. SPEC [C7], [S17].

A worker tells with each renewal whether its disks are too full after it has collected what nobody needs. What runs there goes on. Which
Sessions are held follows from that alone, and is looked at again and again: a Session that comes to such a host is held when it is about
to start something, one that leaves it, or whose host is given up, is released.
"""

from __future__ import annotations

from typing import Any, Final

import structlog

from helmr.control.domain.trees import decide_hold
from helmr.control.service import render, stops
from helmr.control.service.background import Background, Coalesced
from helmr.control.service.core import Core, Effects, record
from helmr.control.service.restoring import SYSTEM
from helmr.control.store.pool import Connection
from helmr.control.store.queries import holds, pressure, sessions
from helmr.protocol.ids import new_id
from helmr.protocol.limits import WORKER_LOST_SECONDS

BATCH: Final = 200

log = structlog.get_logger("helmr.pressure")


class Pressure:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def settle(self) -> bool:
        """Hold and release what is to be; whether there may be more."""
        async with self._core.database.connection() as connection:
            held = await pressure.to_hold(connection, count=BATCH)
            over = await pressure.to_release(connection, grace=WORKER_LOST_SECONDS, count=BATCH)
        for row in held:
            await self._hold(str(row["id"]))
        for row in over:
            await self._release(str(row["session_id"]))
        return BATCH in (len(held), len(over))

    async def _hold(self, session_id: str) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            rows = await self._lock(connection, session_id)
            if not await self._presses(connection, session_id) or await pressure.hold_of(connection, session_id=session_id) is not None:
                return
            session = next(row for row in rows.values() if str(row["id"]) == session_id)
            change = decide_hold([stops.node_of(row) for row in rows.values()], session["id"])
            await stops.place_hold(connection, effects, session["id"], "storage_pressure", change.holds, SYSTEM)
            for blocked in change.cancel_queued:
                await stops.cancel_queued(connection, effects, blocked)
            effects.finishes.add(str(session["root_session_id"]))

        await self._core.write("hold_pressed", work)

    async def _release(self, session_id: str) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            await self._lock(connection, session_id)
            hold_id = await pressure.hold_of(connection, session_id=session_id)
            if hold_id is None or await self._presses(connection, session_id):
                return
            await holds.release_hold(connection, id=hold_id)
            await sessions.add_hold_count(connection, ids=[session_id], change=-1)
            data = render.data(control_id=new_id(), hold_id=str(hold_id), by=SYSTEM)
            await record(connection, effects, session_id, [(None, "session.resume", data)])
            effects.places.add(session_id)
            effects.claims.add(session_id)

        await self._core.write("release_pressed", work)

    async def _lock(self, connection: Connection, session_id: str) -> dict[Any, Any]:
        row = await sessions.session_row(connection, id=session_id)
        return await stops.lock_tree(connection, row["root_session_id"])

    async def _presses(self, connection: Connection, session_id: str) -> bool:
        return bool(await pressure.is_pressed(connection, session_id=session_id, grace=WORKER_LOST_SECONDS))


class PressureNotices:
    """Looks at once when a host tells that it turned; the duty does the rest."""

    def __init__(self, pressed: Pressure, background: Background) -> None:
        self._pressure = pressed
        self._looking = Coalesced(background, "pressure")

    def turned(self, worker: str, storage: Any) -> None:
        log.warning(
            "a host's disks are full" if storage.get("pressed") else "a host's disks have room again", worker=worker, storage=storage
        )
        self._looking.ask("settle", self._settle)

    async def _settle(self, _: str) -> None:
        while await self._pressure.settle():
            pass
