"""More control planes on one database: each hears the notices of the others, as a server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.service.races.forcing import quiet
from tests.service.scripted import House

from helmr.control.service.plane import ControlPlane
from helmr.control.upkeep.closings import Closings
from helmr.control.upkeep.deadlines import Deadlines
from helmr.control.upkeep.linked import Linked
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.control.upkeep.overdue import Overdue
from helmr.control.upkeep.placement import Placement
from helmr.objects.folder import FolderStore


@asynccontextmanager
async def beside(h: House, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """A second control plane beside that of `h`, which keeps the worker's link."""
    other = await successor(h, tmp_path)
    ears = [await h.database.dedicated() for _ in range(2)]
    for ear, plane in zip(ears, (h.plane, other), strict=True):
        await ear.add_listener("helmr_session", _hear(plane))
        await plane.beat()
    try:
        yield other
    finally:
        await other.stop()
        for ear in ears:
            await ear.close()


async def successor(h: House, tmp_path: Path) -> ControlPlane:
    """Another control plane on the database of `h`, started."""
    plane = ControlPlane(h.database, FolderStore(tmp_path / "blobs"), h.config)
    await plane.start()
    return plane


def _hear(plane: ControlPlane) -> Any:
    def hear(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
        plane.noticed(payload)

    return hear


async def take_over(h: House, tmp_path: Path) -> ControlPlane:
    """The control plane of `h` dies, with all that it meant to do next; another takes over, and the worker links to it."""
    h.host.disconnect()
    await h.plane.stop()
    h.plane = h.host.plane = await successor(h, tmp_path)
    h.host.said.clear()
    h.host.connect()
    await h.host.told("welcome")
    await quiet(h.plane)
    return h.plane


async def duties(plane: ControlPlane) -> None:
    """One round of the periodic duties that find what a dead control plane left undone (I6)."""
    for duty in (Deadlines, Overdue, Closings, Placement, Linked, LostWorkers):
        await duty(plane).run()
    await quiet(plane)
