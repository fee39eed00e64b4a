"""Processes of Computers that no longer run are settled, should whoever marked the Computer have died before it did [S14]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import processes

BATCH: Final = 200


class Orphans:
    name = "orphans"
    interval = 15.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        async with self._plane.database.connection() as connection:
            rows = await processes.orphans(connection, count=BATCH)
        for row in rows:
            lost = "memory_lost" if row["process"] == "asleep" else "process_lost"
            await self._plane.processes.ended(str(row["id"]), row["channel"], "worker_lost" if row["residency"] == "unavailable" else lost)
        return len(rows) == BATCH
