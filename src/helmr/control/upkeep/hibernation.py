"""Computers on which everybody has been idle for `hibernate_after_idle` go to sleep [C6]."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class Hibernation:
    name = "hibernation"
    interval = 5.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        await self._plane.sleeping.sleep_idle()
        return False
