"""Point reads of many readers, one query at a time: all that wait are read together."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from helmr.control.store.pool import Database
from helmr.control.store.queries import turns
from helmr.protocol.errors import HelmrError


class Reads:
    """A read is started at once when none is under way; those that come meanwhile share the next one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[str, list[asyncio.Future[Any]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def turn(self, turn_id: str) -> Any:
        """The Turn's row (with its Session's Environment) as of now or later, or None."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(turn_id, []).append(future)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="reads")
        return await future

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                async with self._database.connection() as connection:
                    rows = await turns.turns_by_id(connection, ids=list(waiting))
            except (HelmrError, asyncpg.PostgresError, asyncpg.DataError) as error:
                for futures in waiting.values():
                    for future in futures:
                        if not future.done():
                            future.set_exception(error)
                continue
            found = {str(row["id"]): row for row in rows}
            for turn_id, futures in waiting.items():
                for future in futures:
                    if not future.done():
                        future.set_result(found.get(turn_id))
