"""The clock of a test's database, and the database after a test. `helmr.testing.clock`, `helmr.testing.database`."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import helmr.control.store
from helmr.protocol.ids import new_id
from helmr.testing.clock import move
from helmr.testing.database import DatabaseServer, memory_folder

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def borrowed(server: DatabaseServer) -> AsyncIterator[Any]:
    dsn = server.borrow(moving=True)
    connection: Any = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()
        server.give_back(dsn)


@pytest.mark.parametrize("function", ["now", "clock_timestamp", "statement_timestamp", "transaction_timestamp"])
async def test_every_way_to_ask_for_the_time_moves(database_server: DatabaseServer, function: str) -> None:
    async with borrowed(database_server) as connection:
        await move(connection, 86_400.0)
        await move(connection, 3_600.5)
        ahead = await connection.fetchval(f"SELECT {function}() - pg_catalog.{function}()")
        assert abs(ahead - timedelta(days=1, seconds=3600.5)) < timedelta(seconds=1)


async def test_defaults_move_too(database_server: DatabaseServer) -> None:
    async with borrowed(database_server) as connection:
        await connection.execute("SET search_path TO pg_catalog")  # where a name without a schema is PostgreSQL's own
        left = await connection.fetch("SELECT adrelid::regclass FROM pg_attrdef WHERE pg_get_expr(adbin, adrelid) ~ '(^|[^.])now\\(\\)'")
        assert left == []
        await connection.execute("RESET search_path")
        await move(connection, 86_400.0)
        await connection.execute("INSERT INTO projects (id, name) VALUES ($1, 'later')", new_id())
        made: datetime = await connection.fetchval("SELECT created_at FROM projects")
        real: datetime = await connection.fetchval("SELECT pg_catalog.now()")
        assert made - real > timedelta(hours=23)


def test_no_statement_asks_for_the_time_in_a_way_that_does_not_move() -> None:
    """CURRENT_TIMESTAMP and its like are keywords, which no search path changes; a qualified name passes by the clock as well."""
    folder = Path(helmr.control.store.__path__[0])
    fixed = re.compile(r"\b(current_timestamp|current_date|current_time|localtime(stamp)?|timeofday|pg_catalog\s*\.)\b", re.IGNORECASE)
    found = [f"{path.name}: {line}" for path in folder.rglob("*.sql") for line in path.read_text().splitlines() if fixed.search(line)]
    assert found == []


async def test_leases_move_along(database_server: DatabaseServer) -> None:
    """I8."""
    async with borrowed(database_server) as connection:
        await connection.execute(
            "INSERT INTO workers (id, name, driver, base, cpu, memory, lease_until)"
            " VALUES ($1, 'w', 'd', 'b', 1, 1, now() + interval '1 minute')",
            new_id(),
        )
        await connection.execute("INSERT INTO control_planes (id) VALUES ($1)", new_id())
        await move(connection, 86_400.0 * 365)
        assert await connection.fetchval("SELECT lease_until > now() AND lease_until < now() + interval '61 seconds' FROM workers")
        assert await connection.fetchval("SELECT seen_at > now() - interval '10 seconds' FROM control_planes")


async def test_a_database_that_was_given_back_is_as_new(database_server: DatabaseServer) -> None:
    dsn = database_server.borrow(moving=True)
    used: Any = await asyncpg.connect(dsn)
    tables = [
        row["relname"]
        for row in await used.fetch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
    ]
    before = {table: await used.fetch(f"SELECT * FROM {table}") for table in tables}
    await used.execute("INSERT INTO projects (id, name) VALUES ($1, 'p')", new_id())
    await used.execute("INSERT INTO environments (id, project_id, name) SELECT $1, id, 'e' FROM projects", new_id())
    await move(used, 1_000.0)
    database_server.give_back(dsn)
    with pytest.raises(asyncpg.PostgresError):
        await used.fetchval("SELECT 1")
    again = database_server.borrow(moving=True)
    assert again == dsn
    fresh: Any = await asyncpg.connect(again)
    try:
        assert {table: await fresh.fetch(f"SELECT * FROM {table}") for table in tables} == before
        assert await fresh.fetchval("SELECT seconds FROM helmr_clock.ahead") == 0
    finally:
        await fresh.close()
        database_server.give_back(again)


async def test_two_that_are_borrowed_at_once_are_two(database_server: DatabaseServer) -> None:
    async with borrowed(database_server) as one, borrowed(database_server) as two:
        await move(one, 100.0)
        assert await two.fetchval("SELECT seconds FROM helmr_clock.ahead") == 0


@pytest.mark.timeout(180)
def test_the_last_that_leaves_stops_the_server_and_a_start_that_failed_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="helmr-test-", dir=memory_folder()))
    folder.chmod(0o711)
    pid_file = folder / "databases" / "postgres" / "data" / "postmaster.pid"
    try:
        with DatabaseServer(folder / "databases") as one:
            with DatabaseServer(folder / "databases") as two:
                assert two.borrow(moving=True) != one.borrow(moving=True)
            assert pid_file.exists()
            with monkeypatch.context() as broken:
                broken.setattr("helmr.testing.database.load", lambda: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    DatabaseServer(folder / "databases").__enter__()
            assert pid_file.exists()
        assert not pid_file.exists()
    finally:
        shutil.rmtree(folder)
