"""More control planes on one database: each hears the notices of the others, as a server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.service.scripted import House

from helmr.control.service.plane import ControlPlane, PlaneConfig
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
    plane = ControlPlane(h.database, FolderStore(tmp_path / "blobs"), PlaneConfig())
    await plane.start()
    return plane


def _hear(plane: ControlPlane) -> Any:
    def hear(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
        plane.noticed(payload)

    return hear
