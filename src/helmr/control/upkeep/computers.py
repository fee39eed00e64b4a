"""Computers that were assigned by themselves go once they have outlived their last Session by their Environment's retention [C9]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane

BATCH: Final = 200


class ComputerExpiry:
    name = "computer_expiry"
    interval = 60.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.deletions.expire(BATCH)
