"""Sessions idle for `close_after_idle` are closed [S21]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import sessions

BATCH: Final = 200


class IdleClose:
    name = "idle_close"
    interval = 5.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        async with self._plane.database.connection() as connection:
            rows = await sessions.idle_candidates(connection, count=BATCH)
        closed = 0
        for row in rows:
            closed += await self._plane.controls.close_idle(str(row["id"]))
        return closed == BATCH
