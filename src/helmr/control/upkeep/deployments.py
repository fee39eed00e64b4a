"""Blobs of Deployments that nothing needs any more go [D3]."""

from __future__ import annotations

from helmr.control.service.collecting import Kept
from helmr.control.service.plane import ControlPlane


class OldDeployments:
    name = "old_deployments"
    interval = 3600.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        await self._plane.collection.run(Kept())
        return False
