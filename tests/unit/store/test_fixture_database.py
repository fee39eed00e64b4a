"""The databases that tests get."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from helmr.control.listener import Listener, ListenerConfig
from helmr.server import Server, ServerConfig
from helmr.testing.database import DatabaseServer


async def test_a_clone_is_migrated_and_its_changes_stay_there(database: str, database_server: DatabaseServer) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("INSERT INTO projects (id, name) VALUES (gen_random_uuid(), 'mine')")
    await connection.close()
    other = database_server.clone()
    connection = await asyncpg.connect(other)
    count = await connection.fetchval("SELECT count(*) FROM projects")
    await connection.close()
    database_server.drop(other)
    assert count == 0


async def test_an_empty_database_has_no_table(empty_database: str) -> None:
    connection = await asyncpg.connect(empty_database)
    count = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    await connection.close()
    assert count == 0


@pytest.mark.parametrize(
    "change",
    ["CREATE TABLE other (id int)", "ALTER TABLE projects ADD other int", "DROP TABLE holds"],
)
async def test_a_database_whose_schema_was_changed_is_not_given_again(database_server: DatabaseServer, change: str) -> None:
    dsn = database_server.borrow()
    connection = await asyncpg.connect(dsn)
    await connection.execute(change)
    await connection.close()
    database_server.give_back(dsn)
    again = database_server.borrow()
    database_server.give_back(again)
    assert again != dsn


async def test_a_database_that_a_control_plane_ran_on_is_given_again_as_it_was(database_server: DatabaseServer, tmp_path: Path) -> None:
    """A server writes into rows that migrations made (I11); each test would pay for a clone of its own if those spoilt it."""
    dsn = database_server.borrow()
    before = await _rows(dsn)
    server = Server(ServerConfig(dsn=dsn, blobs=tmp_path / "blobs"), Listener(ListenerConfig(port=0)))
    await server.start()
    await server.stop()
    assert await _rows(dsn) != before
    database_server.give_back(dsn)
    again = database_server.borrow()
    assert again == dsn
    assert await _rows(again) == before
    database_server.give_back(again)


async def _rows(dsn: str) -> dict[str, list[str]]:
    connection = await asyncpg.connect(dsn)
    try:
        found: dict[str, list[str]] = {}
        for row in await connection.fetch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"):
            table = row["relname"]
            found[table] = [each["t"] for each in await connection.fetch(f"SELECT t::text AS t FROM {table} t ORDER BY 1")]
        return found
    finally:
        await connection.close()
