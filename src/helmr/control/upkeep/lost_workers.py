"""Workers silent for their lease and the grace are given up: what ran there settles `worker_lost` [S14], I8.

Only a control plane that has itself served with a reachable database for a whole lease may judge: while the database or all control planes
were away, nobody could renew. What an earlier loss left half told is told by any. A worker whose row is gone has no lease to run out:
it has as long as if it had renewed when that was first seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import computers, processes, saves
from helmr.protocol.limits import LEASE_SECONDS, WORKER_LOST_SECONDS

BATCH: Final = 200


class LostWorkers:
    name = "lost_workers"
    interval = 5.0

    def __init__(self, plane: ControlPlane, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._plane = plane
        self._clock = clock
        self._missing: dict[str, float] = {}
        """Workers that aren't there, and since when."""

    async def run(self) -> bool:
        await self._end_stranded()
        if self._plane.serving_seconds() < LEASE_SECONDS:
            return False
        async with self._plane.database.connection() as connection:
            rows = await computers.workers_lost(connection, seconds=WORKER_LOST_SECONDS, count=BATCH)
            missing = await computers.workers_missing(connection, count=BATCH)
            wanted = await saves.wanted_of_the_lost(connection, seconds=WORKER_LOST_SECONDS, count=BATCH)
        lost = [str(row["id"]) for row in rows] + self._missing_too_long([str(row["id"]) for row in missing])
        for worker_id in dict.fromkeys([*lost, *(str(row["worker_id"]) for row in wanted)]):
            await self._plane.processes.worker_lost(worker_id, {str(row["id"]) for row in wanted})
        return False

    def _missing_too_long(self, missing: list[str]) -> list[str]:
        now = self._clock()
        self._missing = {worker_id: self._missing.get(worker_id, now) for worker_id in missing}
        return [worker_id for worker_id, since in self._missing.items() if now - since >= LEASE_SECONDS + WORKER_LOST_SECONDS]

    async def _end_stranded(self) -> None:
        async with self._plane.database.connection() as connection:
            rows = await processes.stranded(connection, count=BATCH)
        for row in rows:
            await self._plane.processes.stranded_ended(row)
