"""The end of a worker that was told to go. UD-16, [C5], [C6].

The control plane parks what runs here, saves and puts to sleep what is idle, and says with each renewal what is still waited for. Once that
is nothing the lease is given back. What runs beyond the limit goes on under hostd, and is attached by the next worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from helmr.host.worker.failure import logger
from helmr.host.worker.saves import Saves
from helmr.host.worker.uplink import Uplink

LOOK_SECONDS: Final = 0.5
LEAVE_SECONDS: Final = 2.0
"""How long the control plane has to take note that the worker goes."""

Say = Callable[[str], None]

_NAMES: Final = {
    "turns": ("Turn", "Turns"),
    "processes": ("Session process that starts or ends", "Session processes that start or end"),
    "commands": ("Command", "Commands"),
    "streams": ("shell, copy or tunnel", "shells, copies or tunnels"),
    "busy": ("Computer that is busy", "Computers that are busy"),
    "computers": ("Computer on its way", "Computers on their way"),
    "saves": ("save", "saves"),
}


class Host(Protocol):
    """What is needed of the worker."""

    @property
    def saves(self) -> Saves: ...
    @property
    def uplink(self) -> Uplink: ...
    @property
    def live_sessions(self) -> int: ...
    def renew(self) -> None: ...


class Drain:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._answer = asyncio.Event()
        """Set when a renewal was answered."""
        self._waits: Mapping[str, int] | None = None
        self._quiet = asyncio.Event()
        """Set when the last live Session here ended."""
        self._left = asyncio.Event()

    def answered(self, waits: Mapping[str, int] | None) -> None:
        self._waits = waits
        self._answer.set()

    def quiet(self) -> None:
        self._quiet.set()

    def left(self) -> None:
        self._left.set()

    async def run(self, limit: float, say: Say) -> None:
        """Wait until nothing is waited for any more, for at most `limit` seconds; then tell the control plane that this worker goes."""
        logger.info("worker.draining", sessions=self._host.live_sessions, seconds=limit)
        say(f"Draining: takes nothing new, and waits at most {limit:g} s for what runs.")
        try:
            async with asyncio.timeout(limit):
                await self._until_done(say)
                await self._host.saves.wait_idle()
            say("Drained: all here is saved and sleeps.")
        except TimeoutError:
            logger.info("worker.drain_limit", sessions=self._host.live_sessions, waits=self._waits)
            say(f"The time is over{_for(self._waits)}: it goes on by itself, and the next worker takes it up.")
        await self._leave()

    async def _until_done(self, say: Say) -> None:
        before: Mapping[str, int] | None = None
        while True:
            self._answer.clear()
            self._host.renew()
            await self._answer.wait()
            waits = self._waits
            if waits is None:  # a control plane that ends nothing here [D5]
                await self._until_quiet()
                return
            if not any(waits.values()):
                return
            if waits != before:
                say(f"Waits{_for(waits)}.")
                before = waits
            await asyncio.sleep(LOOK_SECONDS)

    async def _until_quiet(self) -> None:
        while self._host.live_sessions:
            self._quiet.clear()
            await self._quiet.wait()
        # What the last of them did is saved too: the control plane says what is to be before it answers this.
        self._answer.clear()
        self._host.renew()
        await self._answer.wait()

    async def _leave(self) -> None:
        if not self._host.uplink.there:
            return
        self._left.clear()
        self._host.uplink.tell("leave")
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._left.wait()
        except TimeoutError:
            logger.info("worker.left_unheard")  # its lease runs out by itself


def no_word(text: str) -> None:
    """Nobody listens."""


def _for(waits: Mapping[str, int] | None) -> str:
    words = [f"{count} {_NAMES.get(kind, (kind, kind))[count != 1]}" for kind, count in sorted((waits or {}).items(), key=_order) if count]
    return " for " + ", ".join(words) if words else ""


def _order(entry: tuple[str, int]) -> int:
    return list(_NAMES).index(entry[0]) if entry[0] in _NAMES else len(_NAMES)


__all__ = ["Drain", "Say", "no_word"]
