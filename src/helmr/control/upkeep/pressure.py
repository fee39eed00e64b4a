"""Sessions on hosts whose disks are full are held, and released when there is room [C7]."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class PressureHolds:
    name = "pressure"
    interval = 2.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.pressure.settle()
