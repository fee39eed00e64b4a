"""Group commit of Session creations: all that wait are made in one transaction. DESIGN 7 (W4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import asyncpg
import structlog

from helmr.control.service.faults import fault_point
from helmr.control.store.creation import Created, Creation, create
from helmr.control.store.pool import Database
from helmr.protocol.errors import HelmrError, InternalError

_MOST: Final = 256

log = structlog.get_logger("helmr.creations")


class Creations:
    """A creation starts at once when none is under way; those that come meanwhile share the next commit."""

    def __init__(self, database: Database, *, origin: Callable[[], str | None]) -> None:
        self._database = database
        self._origin = origin
        self._waiting: list[tuple[Creation, asyncio.Future[Created]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: Creation) -> Created:
        """What became of it, after the commit. Raises `DatabaseUnavailable` when that is unknown."""
        future: asyncio.Future[Created] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="creations")
        return await future

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while self._waiting:
            await self._write(self._take())

    def _take(self) -> list[tuple[Creation, asyncio.Future[Created]]]:
        """What goes into the next commit: all that waits, but a second use of an idempotency key waits for the outcome of the first."""
        taken: list[tuple[Creation, asyncio.Future[Created]]] = []
        later: list[tuple[Creation, asyncio.Future[Created]]] = []
        keys: set[tuple[str, str, str]] = set()
        for pair in self._waiting:
            item = pair[0]
            identity = None if item.idempotency_key is None else (item.environment_id, item.principal_id, item.idempotency_key)
            if len(taken) == _MOST or identity in keys:
                later.append(pair)
                continue
            if identity is not None:
                keys.add(identity)
            taken.append(pair)
        self._waiting = later
        return taken

    async def _write(self, taken: list[tuple[Creation, asyncio.Future[Created]]]) -> None:
        try:
            fault_point("before_commit:create")
            found = await create(self._database, [item for item, _ in taken], self._origin())
            fault_point("after_commit:create")
        except (asyncpg.PostgresError, asyncpg.DataError, ValueError, TypeError) as error:
            if len(taken) > 1:
                log.warning("a batch of creations failed; they are run singly", items=len(taken), error=str(error))
                for pair in taken:
                    await self._write([pair])
                return
            log.error("a Session could not be made", error=str(error))
            self._fail(taken, InternalError())
        except HelmrError as error:
            self._fail(taken, error)
        else:
            for (_, future), outcome in zip(taken, found, strict=True):
                if not future.done():
                    future.set_result(outcome)

    def _fail(self, taken: list[tuple[Creation, asyncio.Future[Created]]], error: HelmrError) -> None:
        for _, future in taken:
            if not future.done():
                future.set_exception(error)
