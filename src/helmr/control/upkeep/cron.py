"""Triggers fire when they are due, and what a Deployment of an older control plane lacks is set [T1]-[T3]."""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane

BATCH: Final = 100
SAFETY_SECONDS: Final = 1.0
"""So often it is looked without being due: another control plane may have promoted meanwhile."""
LEAST_SECONDS: Final = 0.1
JITTER: Final = 1.1
"""A leader may sleep by a tenth longer than it is told, and it must not come late."""


class CronFirings:
    """Sleeps until the next instant, by the database's clock."""

    name = "cron"

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.interval = SAFETY_SECONDS

    async def run(self) -> bool:
        self.interval = SAFETY_SECONDS
        more = await self._plane.firings.fire_due(BATCH)
        seconds = await self._plane.firings.seconds_to_next()
        if seconds is not None:
            self.interval = min(max(seconds / JITTER, LEAST_SECONDS), SAFETY_SECONDS)
        return more


class OldFirings:
    """What became of instants long past is forgotten."""

    name = "old_firings"
    interval = 3600.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        return await self._plane.firings.forget(BATCH * 10)
