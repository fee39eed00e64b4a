"""Whether requests can be served, and what whoever watches should know. SPEC 11 (`/readyz`, `/metrics`), DESIGN I8."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final

from helmr.control.store.pool import Database
from helmr.control.store.queries import computers, processes
from helmr.protocol.errors import DatabaseUnavailable

_FRESH_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """Of the whole installation, whichever control plane is asked; NaN while the database is away."""

    running_without_lease: float
    """Turns that read `running` although nobody has a lease on their Computer."""
    oldest_waiting_seconds: float
    """Since when the oldest Turn has been queued for which a process should be found."""
    workers_pressed: float
    """Live workers whose disks are too full for anything new [C7]."""


_UNKNOWN: Final = Vitals(running_without_lease=math.nan, oldest_waiting_seconds=math.nan, workers_pressed=math.nan)


class Health:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.reachable_since = time.monotonic()
        """Since when the database has answered without a break."""
        self._vitals = _UNKNOWN
        self._looked_at = -math.inf

    async def ready(self) -> None:
        """Raises `DatabaseUnavailable` unless the database answers."""
        try:
            async with self._database.connection() as connection:
                await connection.fetchval("SELECT 1")
        except DatabaseUnavailable:
            self.reachable_since = time.monotonic()
            raise

    async def vitals(self) -> Vitals:
        """At most five seconds old: anybody may ask, as often as they like."""
        now = time.monotonic()
        if now - self._looked_at >= _FRESH_SECONDS:
            self._looked_at = now
            try:
                async with self._database.connection() as connection:
                    self._vitals = Vitals(
                        running_without_lease=await processes.running_without_lease(connection),
                        oldest_waiting_seconds=await processes.longest_wanting(connection),
                        workers_pressed=await computers.workers_pressed(connection),
                    )
            except DatabaseUnavailable:
                self._vitals = _UNKNOWN
        return self._vitals
