"""Commands whose time is over by the database's clock are stopped; those whose Computer is gone have failed; old ones go [C8]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import commands, streams
from helmr.protocol.limits import COMMANDS_KEPT_SECONDS

BATCH: Final = 200


class CommandEnds:
    name = "command_ends"
    interval = 2.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        plane = self._plane
        async with plane.database.connection() as connection:
            overdue = await commands.commands_overdue(connection, count=BATCH)
            stranded = await commands.commands_stranded(connection, count=BATCH)
            await streams.expire_streams(connection, count=BATCH)
            expired = await commands.expire_commands(connection, seconds=COMMANDS_KEPT_SECONDS, count=BATCH)
        for row in overdue:
            await plane.dispatcher.commands.time_over(str(row["id"]))
        for row in stranded:
            await plane.dispatcher.commands.computer_gone(str(row["computer_id"]))
        return expired == BATCH
