"""What this plane's workers should be told is looked for again, builds are begun, unused Computers are stopped (I6), [C10]."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class Linked:
    name = "linked"
    interval = 2.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        self._plane.links.poke()
        await self._plane.links.rest()
        await self._plane.links.drain_asked()
        self._plane.builds.build_pending()
        return False
