"""How full this host's disks are: above the high-water mark what nobody needs goes, and if that is not enough the control plane is told,
which then begins nothing new here. SPEC [C7].

calm --above the high mark, also after collecting--> pressed --under the low mark--> calm
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from helmr.host.worker import caches
from helmr.host.worker.failure import logger
from helmr.host.worker.gate import HostdGate
from helmr.host.worker.ports import HostdRefused
from helmr.protocol.storage import Disk, WaterMarks, disk_of, fullest

LOOK_SECONDS: Final = 10.0
COLLECT_SECONDS: Final = 60.0
"""While a disk stays full, it is collected again no sooner than this."""


class Storage:
    """`run` looks again and again; `changed` is called when there begins to be pressure, or ceases to be."""

    def __init__(self, state: Path, gate: HostdGate, marks: WaterMarks, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._state = state
        self._gate = gate
        self._marks = marks
        self._look_seconds = look_seconds
        self._disk: Disk | None = None
        self._collected_at = float("-inf")
        self._looking = asyncio.Lock()
        self.pressed = False
        self.changed: Callable[[], None] = lambda: None

    def told(self) -> dict[str, Any] | None:
        """For a renewal of the leases; None before the first look."""
        return None if self._disk is None else {"total": self._disk.total, "free": self._disk.free, "pressed": self.pressed}

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            try:
                await self.look()
            except (OSError, HostdRefused) as error:
                logger.warning("storage.not_measured", error=str(error))
            await asyncio.sleep(self._look_seconds)

    async def look(self) -> None:
        """Measure; collect when it is needed; say what changed. Raises `OSError`, `HostdRefused`."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        disk = await self._measure()
        if disk.share >= self._marks.high and time.monotonic() - self._collected_at >= COLLECT_SECONDS:
            await self._collect(disk)
            disk = await self._measure()
        before, self._disk = self.pressed, disk
        self.pressed = self._marks.pressed(disk.share, before)
        if not self.pressed:
            self._collected_at = float("-inf")
        if self.pressed != before:
            logger.warning("storage.pressed" if self.pressed else "storage.relieved", used=f"{disk.share:.1%}", free=disk.free)
            self.changed()

    async def _measure(self) -> Disk:
        """The fullest of the worker's disk and hostd's."""
        disks = [await asyncio.to_thread(disk_of, self._state)]
        try:
            disks.append(await self._gate.storage())
        except HostdRefused as refused:
            if refused.code != "unknown_method":  # a hostd of an earlier version [D5]
                raise
        return fullest(disks)

    async def _collect(self, disk: Disk) -> None:
        self._collected_at = time.monotonic()
        removed = await asyncio.to_thread(caches.collect, self._state / "cache")
        layers = await self._gate.collect_images()
        logger.warning("storage.collected", used=f"{disk.share:.1%}", cached=removed, layers=layers)
