"""Sessions that want a process get one, Commands their Computer: after a back-off, when room is free, when a notice was lost [S14], [C10].
So do Sessions that want one to end on a Computer that sleeps."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import commands, computers, processes

BATCH: Final = 200


class Placement:
    name = "placement"
    interval = 1.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        async with self._plane.database.connection() as connection:
            rows = await processes.wanting(connection, count=BATCH)
            rows += await computers.ends_asleep(connection, count=BATCH)
            queued = await commands.queued(connection, count=BATCH)
        for row in rows:
            self._plane.dispatcher.place(str(row["id"]))
        for row in queued:
            self._plane.dispatcher.place_command(str(row["id"]))
        return False
