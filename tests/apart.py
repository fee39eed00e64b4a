"""The server of this process's tests, for what asks a database without being a fixture."""

from __future__ import annotations

from typing import Final

from helmr.testing.database import DatabaseServer

SERVERS: Final[list[DatabaseServer]] = []
