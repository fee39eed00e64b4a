"""Asks databases from outside of what a test runs, on connections that its next tests have, too."""

from __future__ import annotations

from typing import Any, Final

import asyncpg

from helmr.testing.database import DatabaseServer

SERVERS: Final[list[DatabaseServer]] = []
"""The server of this process's tests, once one has asked for it."""


async def fetch(dsn: str, statement: str, *arguments: object) -> list[Any]:
    """Rows of a test's database; of one that is of no server here, on a connection for this alone."""
    for server in SERVERS:
        if server.lends(dsn):
            return await server.fetch(dsn, statement, *arguments)
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(statement, *arguments)
    finally:
        await connection.close()
