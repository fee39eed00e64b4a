"""Work that goes on only while its reader is there and the server stays: long polls and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from helmr.control.api.exchange import ClientGone

if TYPE_CHECKING:
    from helmr.control.api.exchange import Exchange

T = TypeVar("T")

ON_GONE: Final = "helmr.on_gone"
"""ASGI extension of our listener: takes what is to be called when the client goes before its reply is complete, or None."""


class Draining(Exception):
    """This control plane is stopping: what waits ends now, so that the reader goes elsewhere."""


class Presence:
    """Watches the clients of all open waits and streams, and can end them together."""

    def __init__(self) -> None:
        self.draining = False
        self._watches: set[_Watch] = set()

    @property
    def open(self) -> int:
        """Waits and streams under way."""
        return len(self._watches)

    def drain(self) -> None:
        """End all waits and streams with `Draining`, and those that still begin."""
        self.draining = True
        for watch in tuple(self._watches):
            watch.end(Draining())

    async def during(self, exchange: Exchange, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. When either side goes first, `work` is cancelled and ended, and `ClientGone` or `Draining` is raised."""
        if self.draining:
            work.close()
            raise Draining
        task = asyncio.current_task()
        assert task is not None
        watch = _Watch(task)
        self._watches.add(watch)
        on_gone: Callable[[Callable[[], None] | None], None] | None = exchange.scope.get("extensions", {}).get(ON_GONE)
        watcher: asyncio.Task[None] | None = None
        if on_gone is not None:
            on_gone(watch.gone)
        else:
            watcher = asyncio.create_task(_watch(exchange, watch))
        try:
            return await work
        except asyncio.CancelledError:
            if watch.reason is not None and task.uncancel() <= watch.cancelling:
                raise watch.reason from None
            raise
        except BaseExceptionGroup as several:
            raise _first(several) from None
        finally:
            self._watches.discard(watch)
            if on_gone is not None:
                on_gone(None)
            if watcher is not None:
                watcher.cancel()


class _Watch:
    """One wait or stream: ends its task's work, once, with a reason."""

    __slots__ = ("_task", "cancelling", "reason")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.cancelling = task.cancelling()
        self.reason: Exception | None = None

    def end(self, reason: Exception) -> None:
        """Called in the event loop while the work waits."""
        if self.reason is None:
            self.reason = reason
            self._task.cancel()

    def gone(self) -> None:
        self.end(ClientGone())


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(cast("BaseExceptionGroup[BaseException]", error)) if isinstance(error, BaseExceptionGroup) else error


async def _watch(exchange: Exchange, watch: _Watch) -> None:
    """For servers without `ON_GONE`."""
    while (await exchange.receive())["type"] != "http.disconnect":
        pass
    watch.gone()
