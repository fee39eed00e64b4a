"""A control plane's own disks: above the high-water mark what no save needs any more goes before its time, and the log says so. SPEC [C7].

A disk that is full all the same refuses what is sent (`storage_full`), and loses nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import saves
from helmr.control.upkeep.collection import BATCH
from helmr.protocol.storage import Disk, disk_of, fullest

log = structlog.get_logger("helmr.storage")

ROUNDS: Final = 1_000
"""How many batches of Computers are looked at in one run."""


class OwnStorage:
    name = "own_storage"
    interval = 30.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._pressed = False

    async def run(self) -> bool:
        if not self._plane.disks:
            return False
        disk = await self._measure()
        if disk.share >= self._plane.storage.high and not self._pressed:
            async with self._plane.database.connection() as connection:
                await saves.collect_all_soon(connection)
            for _ in range(ROUNDS):
                if not await self._plane.save_objects.collect(BATCH):
                    break
            disk = await self._measure()
        before, self._pressed = self._pressed, self._plane.storage.pressed(disk.share, self._pressed)
        if self._pressed != before:
            said = "this control plane's disk is too full" if self._pressed else "this control plane's disk has room again"
            log.warning(said, used=f"{disk.share:.1%}", free=disk.free)
        return False

    async def _measure(self) -> Disk:
        return fullest([await asyncio.to_thread(disk_of, path) for path in self._plane.disks])
