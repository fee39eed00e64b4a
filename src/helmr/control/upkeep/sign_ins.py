"""What has ended of signing in is forgotten: sign-ins, codes, devices, counts of attempts, old lines of its log. SPEC 14."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class OldSignIns:
    name = "old_sign_ins"
    interval = 600.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        await self._plane.ways.collect()
        return False
