"""Computers are saved after their Turns have settled, and saves of which nobody will say what became are given up [C5]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane

BATCH: Final = 200


class Saving:
    name = "saving"
    interval = 5.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        await self._plane.saves.end_overdue(BATCH)
        return await self._plane.saves.begin_due(BATCH)
