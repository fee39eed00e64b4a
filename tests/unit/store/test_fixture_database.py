"""The databases that tests get."""

from __future__ import annotations

import asyncpg

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
