"""What this control plane's workers should be told is looked for again, and builds that wait for one are begun (I6)."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class Linked:
    name = "linked"
    interval = 2.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        self._plane.links.poke()
        self._plane.deployments.build_pending()
        return False
