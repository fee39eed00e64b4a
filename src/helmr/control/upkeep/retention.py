"""Payloads of closed Sessions whose time is over go, and what a crash left half done [S22]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane

BATCH: Final = 50


class PayloadExpiry:
    name = "payload_expiry"
    interval = 60.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.retention.expire_due(BATCH)
