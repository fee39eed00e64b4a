"""Tasks that nobody awaits, owned by a Service: none outlives it, and none fails unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import structlog

from helmr.protocol.errors import DatabaseUnavailable

T = TypeVar("T")

_AWAY_SECONDS: Final = 0.25

log = structlog.get_logger("helmr.background")


class Background:
    """Starts tasks and keeps them until they end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[None] | None:
        """Run `work`; None when this has been stopped. What it raises is logged; that the database is away is no fault, since polling does
        the work again (I6)."""
        if self._closed:
            work.close()
            return None
        task = asyncio.create_task(self._guard(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it would never have begun
        return task

    async def stop(self) -> None:
        """Cancel what runs and wait for its end."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guard(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        try:
            await work
        except DatabaseUnavailable as error:
            log.warning("put off until the database is back", work=name, error=str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("background work failed", work=name)


class Coalesced:
    """Runs one function per key at a time; a key asked for while it runs is run once more afterwards."""

    def __init__(self, background: Background, name: str) -> None:
        self._background = background
        self._name = name
        self._running: dict[str, bool] = {}

    def ask(self, key: str, work: Any) -> None:
        """`work(key)` will run, beginning after this call."""
        if key in self._running:
            self._running[key] = True
            return
        self._running[key] = False
        self._background.start(self._run(key, work), self._name)

    async def _run(self, key: str, work: Any) -> None:
        try:
            while True:
                self._running[key] = False
                await work(key)
                if not self._running[key]:
                    return
        finally:
            self._running.pop(key, None)


async def until_stored(work: Callable[[], Awaitable[T]]) -> T:
    """Do `work` again while the database is away: for what is said once, such as that a process ended. `work` must bear repetition, since
    it may have been stored and only the reply lost."""
    while True:
        try:
            return await work()
        except DatabaseUnavailable:
            await asyncio.sleep(_AWAY_SECONDS)
