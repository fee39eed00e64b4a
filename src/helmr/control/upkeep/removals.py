"""Workers that are to be removed are, once nothing of them is lost by it. SPEC 11."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class Removals:
    name = "removals"
    interval = 2.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.workers.finish_removals()
