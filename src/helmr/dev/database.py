"""The database of a `helmr dev`: an embedded PostgreSQL that is started again when it ends by itself. [D4]"""

from __future__ import annotations

import asyncio
from typing import Final

from helmr.control.store.postgres import EmbeddedPostgres
from helmr.dev.screen import Screen
from helmr.protocol.errors import SetupError

FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 30.0
"""Seconds between attempts of a server that does not start."""


class KeptPostgres:
    """A Service. A server that was killed or stopped by somebody else comes back and recovers by its log; accepted work is in it."""

    def __init__(self, postgres: EmbeddedPostgres, screen: Screen) -> None:
        self._postgres = postgres
        self._screen = screen
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start the server and keep it; its address. Raises what `EmbeddedPostgres.start` raises, the first time."""
        dsn = await self._postgres.start()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="keep PostgreSQL")
        return dsn

    async def stop(self) -> None:
        """End the server for good. Idempotent."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping])
        await self._postgres.stop()

    async def _keep(self) -> None:
        while True:
            await self._postgres.wait_ended()
            self._screen.note("the database ended by itself; starting it again")
            await self._start_again()
            self._screen.note("the database is back")

    async def _start_again(self) -> None:
        wait = FIRST_WAIT
        while True:
            try:
                await self._postgres.start()
                return
            except SetupError as error:
                self._screen.error(error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
