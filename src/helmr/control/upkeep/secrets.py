"""Revoked Secrets are taken from who has them, and who waits for one that came is started, if nobody said so in time [X2]."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class SecretExposures:
    name = "secrets"
    interval = 5.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.exposures.settle()
