"""What no save of a Computer needs any more leaves the object store [C5]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane

BATCH: Final = 20
"""Computers in one run: each is listed."""


class Collection:
    name = "collection"
    interval = 60.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.save_objects.collect(BATCH)
