"""Closing Sessions that have nothing left are closed, should the process that settled their last Turn have died [S18]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import sessions

BATCH: Final = 200


class Closings:
    name = "closings"
    interval = 2.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        async with self._plane.database.connection() as connection:
            rows = await sessions.closings_done(connection, count=BATCH)
        for root in {str(row["root_session_id"]) for row in rows}:
            await self._plane.controls.finish(root)
        return False
