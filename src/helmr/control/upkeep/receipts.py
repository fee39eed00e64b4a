"""Receipts of exact retries are forgotten after 30 days, unless their Session is still there to be worked with [S4]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane

BATCH: Final = 2000


class OldReceipts:
    name = "old_receipts"
    interval = 600.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.retention.forget_receipts(BATCH)
