"""Turns whose `max_turn_duration` is over get their stop mark [S12]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import sessions

BATCH: Final = 200


class Deadlines:
    name = "deadlines"
    interval = 0.5

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        async with self._plane.database.connection() as connection:
            rows = await sessions.deadlines_due(connection, count=BATCH)
        for row in rows:
            await self._plane.processes.deadline(str(row["id"]))
        return len(rows) == BATCH
