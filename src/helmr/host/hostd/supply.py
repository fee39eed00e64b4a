"""The channel to its egress proxy for a Computer that can't connect to it: passed in, and passed anew whenever it has ended. [C4].

A guest can end its channel as often as it likes, and gains nothing but longer pauses between them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from helmr.host.hostd.egress import ComputerEgress
from helmr.host.hostd.failure import NotRunning
from helmr.host.sandbox.spawn import LaunchFailed

PASS_SECONDS: Final = 10.0
"""How long one attempt may take: no other stream is passed in meanwhile."""
FIRST_PAUSE_SECONDS: Final = 0.1
LAST_PAUSE_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 20.0
"""A channel that lasted so long makes the next pause a first one."""

_log = structlog.get_logger("helmr.hostd.supply")

Make = Callable[[float], Awaitable[socket.socket]]
"""Our end of a new channel that the forwarder inside will have, within so many seconds. Raises `TimeoutError`, `LaunchFailed`,
and `NotRunning` once there is no guest any more."""


class Supply:
    """Between `start` and `stop`, both idempotent, the guest has a channel or is given one. `stop` ends no channel."""

    def __init__(self, egress: ComputerEgress, make: Make) -> None:
        self._egress = egress
        self._make = make
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            since = time.monotonic()
            try:
                channel = await self._egress.join(await self._make(PASS_SECONDS))
                since = time.monotonic()
            except NotRunning:
                return
            except (TimeoutError, LaunchFailed, OSError) as error:
                _log.info("egress.not_passed", reason=str(error) or "nobody inside took it")
            else:
                await asyncio.wait((channel.closed,))
            steady = time.monotonic() - since > STEADY_SECONDS
            pause = FIRST_PAUSE_SECONDS if steady else min(2 * pause, LAST_PAUSE_SECONDS)
            await asyncio.sleep(pause)
