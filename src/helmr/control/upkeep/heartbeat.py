"""This control plane says that it is alive, and looks whether others are: alone, it sends no notices."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class Heartbeat:
    name = "heartbeat"
    interval = 2.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        await self._plane.beat()
        return False
