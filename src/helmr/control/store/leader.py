"""Periodic duties of an installation: each runs in one control plane at a time, whichever holds the duty's advisory lock.

A leader whose standing connection breaks may still be inside `run` when the next one starts: duties are written so that two runs at once do
no harm (guarded updates), the lock only saves work.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from helmr.control.store.locks import LEADER, key
from helmr.protocol.errors import DatabaseUnavailable

log = structlog.get_logger("helmr.upkeep")


class Duty(Protocol):
    """One thing to do now and then."""

    @property
    def name(self) -> str:
        """Unique, stable over versions: it names the lock."""
        ...

    @property
    def interval(self) -> float:
        """Seconds from the end of a run to the next."""
        ...

    async def run(self) -> bool:
        """Do a bounded piece of it. True when more is waiting: the next run follows at once."""
        ...


class Locks(Protocol):
    """What a leader needs of `StandingConnection`."""

    async def try_lock(self, kind: int, thing: int) -> bool: ...
    async def unlock(self, kind: int, thing: int) -> None: ...


class Everywhere:
    """The locks of duties that each control plane has for itself."""

    async def try_lock(self, kind: int, thing: int) -> bool:
        return True

    async def unlock(self, kind: int, thing: int) -> None:
        return None


class Clock(Protocol):
    """How duties wait; tests have one of their own."""

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Return when `event` is set or `seconds` have passed."""
        ...


class SystemClock:
    """The clock of the machine."""

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepConfig:
    jitter: float = 0.1
    """Each interval is varied by up to this share, so that control planes don't march in step."""
    longest_back_off: float = 60.0
    """Seconds between tries of a duty that keeps failing."""


class Upkeep:
    """A Service: one task for each duty. Stopping cancels the runs and frees the locks."""

    def __init__(self, duties: Sequence[Duty], locks: Locks, *, clock: Clock | None = None, config: UpkeepConfig | None = None) -> None:
        names = [duty.name for duty in duties]
        if len({key(name) for name in names}) != len(names):
            raise ValueError(f"two duties have the same lock: {names}")
        self._duties = tuple(duties)
        self._locks = locks
        self._clock = clock or SystemClock()
        self._config = config or UpkeepConfig()
        self._nudges = {name: asyncio.Event() for name in names}
        self._tasks: list[asyncio.Task[None]] = []
        self.failures: dict[str, int] = dict.fromkeys(names, 0)
        """Failed runs in a row, by duty."""

    async def start(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._keep(duty), name=f"duty {duty.name}") for duty in self._duties]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def nudge(self, name: str) -> None:
        """Let the duty run now instead of at the end of its interval, if this process is its leader."""
        self._nudges[name].set()

    async def _keep(self, duty: Duty) -> None:
        leads = False
        try:
            while True:
                self._nudges[duty.name].clear()
                more = False
                try:
                    now_leads = await self._locks.try_lock(LEADER, key(duty.name))
                    if now_leads and not leads:
                        log.debug("leads a duty", duty=duty.name)
                    leads = now_leads
                    if leads:
                        more = await duty.run()
                    self.failures[duty.name] = 0
                except DatabaseUnavailable:
                    self.failures[duty.name] += 1
                    log.warning("a duty waits for the database", duty=duty.name)
                except Exception:
                    # A duty that fails must not end its siblings or the control plane: it is said and tried again.
                    self.failures[duty.name] += 1
                    log.exception("a duty failed", duty=duty.name)
                if not more:
                    await self._clock.wait(self._nudges[duty.name], self._pause(duty))
        finally:
            if leads:
                await asyncio.shield(self._locks.unlock(LEADER, key(duty.name)))

    def _pause(self, duty: Duty) -> float:
        failures = self.failures[duty.name]
        longest = max(duty.interval, self._config.longest_back_off)
        seconds = min(duty.interval * 2 ** min(failures, 10), longest)
        return seconds * random.uniform(1 - self._config.jitter, 1 + self._config.jitter)
