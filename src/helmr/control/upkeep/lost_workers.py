"""Workers silent for their lease and the grace are given up: what ran there settles `worker_lost` [S14], I8.

Only a control plane that has itself served with a reachable database for a whole lease may judge: while the database or all control planes
were away, nobody could renew. What an earlier loss left half told is told by any.
"""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import computers, processes
from helmr.protocol.limits import LEASE_SECONDS, WORKER_LOST_SECONDS

BATCH: Final = 200


class LostWorkers:
    name = "lost_workers"
    interval = 5.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        await self._end_stranded()
        if self._plane.serving_seconds() < LEASE_SECONDS:
            return False
        async with self._plane.database.connection() as connection:
            rows = await computers.workers_lost(connection, seconds=WORKER_LOST_SECONDS, count=BATCH)
        for row in rows:
            await self._plane.processes.worker_lost(str(row["id"]))
        return False

    async def _end_stranded(self) -> None:
        async with self._plane.database.connection() as connection:
            rows = await processes.stranded(connection, count=BATCH)
        for row in rows:
            end = "worker_lost" if row["residency"] == "unavailable" else "process_lost"
            await self._plane.processes.ended(str(row["id"]), row["channel"], end)
