"""The databases that tests get."""

from __future__ import annotations

import asyncpg
import pytest

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
    ["CREATE TABLE other (id int)", "ALTER TABLE projects ADD other int", "DELETE FROM helmr_migrations", "DROP TABLE holds"],
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
