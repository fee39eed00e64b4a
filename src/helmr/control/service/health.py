"""Whether requests can be served. SPEC 11 (`/readyz`), DESIGN I8."""

from __future__ import annotations

import time

from helmr.control.store.pool import Database
from helmr.protocol.errors import DatabaseUnavailable


class Health:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.reachable_since = time.monotonic()
        """Since when the database has answered without a break."""

    async def ready(self) -> None:
        """Raises `DatabaseUnavailable` unless the database answers."""
        try:
            async with self._database.connection() as connection:
                await connection.fetchval("SELECT 1")
        except DatabaseUnavailable:
            self.reachable_since = time.monotonic()
            raise
