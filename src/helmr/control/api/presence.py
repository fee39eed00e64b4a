"""Work that goes on only while its reader is there and the server stays: long polls and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from helmr.control.api.exchange import ClientGone

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")

_DRAIN = "drain"


class Draining(Exception):
    """This control plane is stopping: what waits ends now, so that the reader goes elsewhere."""


class Presence:
    """Watches the clients of all open waits and streams, and can end them together."""

    def __init__(self) -> None:
        self.draining = False
        self._watchers: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        """Waits and streams under way."""
        return len(self._watchers)

    def drain(self) -> None:
        """End all waits and streams with `Draining`, and those that still begin."""
        self.draining = True
        for watcher in tuple(self._watchers):
            watcher.cancel(_DRAIN)

    async def during(self, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. When either side goes first, `work` is cancelled and ended, and `ClientGone` or `Draining` is raised."""
        if self.draining:
            work.close()
            raise Draining
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(_watch(receive))
                self._watchers.add(watcher)
                try:
                    result = await work
                finally:
                    self._watchers.discard(watcher)
                    watcher.cancel()
        except BaseExceptionGroup as several:
            raise _first(several) from None
        return result


async def _watch(receive: Receive) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except asyncio.CancelledError as cancelled:
        if cancelled.args == (_DRAIN,):
            raise Draining from None
        raise
    raise ClientGone


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(cast("BaseExceptionGroup[BaseException]", error)) if isinstance(error, BaseExceptionGroup) else error
