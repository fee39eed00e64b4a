"""Processes of Computers attached here that overstay: `init` beyond its limit, a cleanup beyond 10 s, an end that does not come.

SPEC [S9], [S13].

Runs in each control plane for its own links: only they can end a process.
"""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import commands, processes, sessions
from helmr.protocol.limits import CLEANUP_SECONDS

BATCH: Final = 200


class Overdue:
    name = "overdue"
    interval = 1.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        plane = self._plane
        async with plane.database.connection() as connection:
            inits = await processes.inits_overdue(connection, count=BATCH)
            stops = await sessions.stops_overdue(connection, seconds=CLEANUP_SECONDS + 1, count=BATCH)
            programs = await commands.commands_overstaying(connection, seconds=CLEANUP_SECONDS + 2, count=BATCH)
            ends = await processes.ends_overdue(connection, count=BATCH)
        for row in inits:
            await plane.dispatcher.telling.init_overdue(str(row["id"]))
        for row in stops:
            await plane.dispatcher.telling.force_stop(str(row["id"]), str(row["running_turn"]))
        for row in ends:
            plane.dispatcher.roster.kill(str(row["computer_id"]), row["channel"], "end_overdue")
        for row in programs:
            plane.dispatcher.roster.kill(str(row["computer_id"]), row["channel"], "stop_overdue")
        return False
