"""Old entries of the audit log go. SPEC 14."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class OldAudit:
    name = "old_audit"
    interval = 600.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.audit.forget_old()
