"""What a new connection has to ask the database before it can be used (DESIGN 7)."""

from __future__ import annotations

import uuid

import pytest

from helmr.control.store.pool import Database

pytestmark = pytest.mark.anyio


async def test_only_the_first_connection_asks_for_the_types_of_the_server(database) -> None:
    """Arrays go both ways on the second without a question of the driver's own."""
    pool = Database(database)
    first, second = await pool.dedicated(), await pool.dedicated()
    asked: list[str] = []
    try:
        await first.fetchval("SELECT $1::uuid[]", [uuid.uuid4()])
        second.add_query_logger(lambda told: asked.append(told.query))
        for value in ([uuid.uuid4()], [], [None, uuid.uuid4()]):
            assert await second.fetchval("SELECT $1::uuid[]", value) == value
        assert set(asked) == {"SELECT $1::uuid[]"}, "nothing but what was to be asked"
    finally:
        await first.close()
        await second.close()


async def test_types_of_a_database_are_asked_for_each_time(database) -> None:
    """Their numbers mean something else in another database."""
    pool = Database(database)
    connection = await pool.dedicated()
    try:
        for kind, value in (("colour", "red"), ("taste", "sweet")):
            async with connection.transaction():
                await connection.execute(f"CREATE TYPE {kind} AS ENUM ('{value}')")
                assert await connection.fetchval(f"SELECT ARRAY['{value}']::{kind}[]") == [value]
                await connection.execute(f"DROP TYPE {kind}")
    finally:
        await connection.close()
