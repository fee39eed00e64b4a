"""The watchdog: a Computer whose lease ends stands still until the next lease [I8]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.host.hostd.records import boot_seconds
from helmr.host.sandbox.identity import boot_id

LOOK_SECONDS: Final = 1.0

_log = structlog.get_logger("helmr.hostd.watchdog")

Freeze = Callable[[str], Awaitable[None]]


class Watchdog:
    """Ends of leases, in seconds since boot, also on disk: a restart of hostd must not lengthen one."""

    def __init__(self, file: Path, *, freeze: Freeze, thaw: Freeze) -> None:
        self._file = file
        self._freeze = freeze
        self._thaw = thaw
        self._ends: dict[str, float] = {}
        self._lapsed: set[str] = set()
        self._changed = asyncio.Event()

    def load(self, computers: Iterable[str]) -> None:
        """After a restart: the leases of the Computers that run. One without a lease counts as ended."""
        known: dict[str, Any] = {}
        if self._file.exists():
            try:
                stored = json.loads(self._file.read_text())
                known = stored["ends"] if stored["boot"] == boot_id() else {}
            except (ValueError, TypeError, KeyError) as error:
                _log.error("leases.damaged", file=str(self._file), error=str(error))  # all count as ended: the next lease lets them go on
        self._ends = {computer: float(known.get(computer, 0.0)) for computer in computers}

    def current(self) -> list[str]:
        """The Computers whose lease goes on."""
        now = boot_seconds()
        return [computer for computer, end in self._ends.items() if end > now]

    async def lease(self, computers: Iterable[str], seconds: float) -> None:
        """Each may run for `seconds` from now; those that stood still for want of a lease go on."""
        end = boot_seconds() + seconds
        named = list(computers)
        self._ends |= dict.fromkeys(named, end)
        self._store()
        self._changed.set()
        for computer in named:
            if computer in self._lapsed:
                self._lapsed.discard(computer)
                _log.info("lease.renewed", computer=computer)
                await self._thaw(computer)

    async def end_all(self) -> None:
        """Every lease ends now: what runs stands still until it is leased anew."""
        self._ends = dict.fromkeys(self._ends, 0.0)
        self._store()
        for computer in tuple(self._ends):
            if computer not in self._lapsed:
                self._lapsed.add(computer)
                _log.warning("lease.revoked", computer=computer)
                await self._freeze(computer)

    def forget(self, computer: str) -> None:
        """It runs no more."""
        self._ends.pop(computer, None)
        self._lapsed.discard(computer)
        self._store()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            now = boot_seconds()
            for computer, end in tuple(self._ends.items()):
                if end <= now and computer not in self._lapsed:
                    self._lapsed.add(computer)
                    _log.warning("lease.ended", computer=computer)
                    await self._freeze(computer)
            ahead = [end - now for computer, end in self._ends.items() if computer not in self._lapsed]
            self._changed.clear()
            try:
                # Never longer than a second: time asleep counts, and the loop's clock doesn't see it.
                async with asyncio.timeout(max(0.001, min([LOOK_SECONDS, *ahead]))):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _store(self) -> None:
        draft = self._file.with_suffix(".draft")
        # Not synced: after a power loss no lease of that boot counts anyway.
        draft.write_text(json.dumps({"boot": boot_id(), "ends": self._ends}))
        draft.replace(self._file)
