"""The standing connection: notices, locks, and going on after losses (I6, UD-82)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg
import pytest
from structlog.testing import capture_logs

from helmr.control.store.locks import CODE_VERSION, LEADER
from helmr.control.store.standing import StandingConfig, StandingConnection
from helmr.protocol.errors import DatabaseUnavailable

Bounded = Callable[[], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def standing(dsn: str, received: asyncio.Queue[str] | None = None, **config: float) -> AsyncIterator[StandingConnection]:
    connection = StandingConnection(StandingConfig(dsn=dsn, **config), code_version=7)
    if received is not None:
        connection.listen("helmr_test", received.put_nowait)
    await connection.start()
    async with asyncio.timeout(5):
        await connection.started.wait()
    try:
        yield connection
    finally:
        await connection.stop()


async def cut_standing_connections(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'helmr-standing' AND datname = current_database()"
    )
    await connection.close()


async def test_a_notice_is_heard(empty_database: str, bounded: Bounded) -> None:
    received: asyncio.Queue[str] = asyncio.Queue()
    other = await asyncpg.connect(empty_database)
    async with standing(empty_database, received) as connection, bounded():
        await other.execute("SELECT pg_notify('helmr_test', 'id')")
        assert await received.get() == "id"
        assert not connection.deaf
    await other.close()


async def test_a_cut_connection_is_made_again_and_hears_again(empty_database: str, bounded: Bounded) -> None:
    received: asyncio.Queue[str] = asyncio.Queue()
    connects: asyncio.Queue[None] = asyncio.Queue()
    other = await asyncpg.connect(empty_database)
    async with standing(empty_database, received) as connection, bounded():
        connection.on_connected(lambda: connects.put_nowait(None))
        await cut_standing_connections(empty_database)
        await connects.get()
        await other.execute("SELECT pg_notify('helmr_test', 'after')")
        assert await received.get() == "after"
    await other.close()


async def test_a_deaf_connection_is_said_once_with_the_remedy_and_used_all_the_same(
    empty_database: str, bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UD-82. Behind a pooler in transaction mode LISTEN reaches a connection that isn't ours later: here it reaches none."""

    async def not_listening(self: object, channel: str, callback: object) -> None:
        assert channel
        assert callback

    monkeypatch.setattr(asyncpg.Connection, "add_listener", not_listening)
    monkeypatch.setattr(asyncpg.Connection, "remove_listener", not_listening)
    connects: asyncio.Queue[None] = asyncio.Queue()
    with capture_logs() as logs:
        async with standing(empty_database, probe_seconds=0.05) as connection, bounded():
            assert connection.deaf
            connection.on_connected(lambda: connects.put_nowait(None))
            await cut_standing_connections(empty_database)
            await connects.get()
            assert await connection.try_lock(LEADER, 1)
    said = [entry for entry in logs if entry["log_level"] == "error"]
    assert len(said) == 1
    assert "session mode" in said[0]["remedy"]


async def test_a_lock_has_one_holder_until_it_is_given_back(empty_database: str, bounded: Bounded) -> None:
    async with standing(empty_database) as one, standing(empty_database) as other, bounded():
        assert await one.try_lock(LEADER, -5)
        assert await one.try_lock(LEADER, -5)
        assert not await other.try_lock(LEADER, -5)
        assert await other.try_lock(LEADER, 5)
        await one.unlock(LEADER, -5)
        assert await other.try_lock(LEADER, -5)


async def test_a_stopped_process_holds_no_lock(empty_database: str, bounded: Bounded) -> None:
    async with standing(empty_database) as one:
        assert await one.try_lock(LEADER, 1)
    async with standing(empty_database) as other, bounded():
        while not await other.try_lock(LEADER, 1):
            continue
    with pytest.raises(DatabaseUnavailable):
        await one.try_lock(LEADER, 1)


async def test_the_version_of_the_code_is_announced_while_connected(empty_database: str) -> None:
    """A post step of a migration waits for it."""
    other = await asyncpg.connect(empty_database)
    query = f"SELECT min(objid::bigint) FROM pg_locks WHERE locktype = 'advisory' AND classid = {CODE_VERSION} AND objid = 7"
    async with standing(empty_database):
        assert await other.fetchval(query) == 7
    await other.close()


async def test_a_database_that_comes_later_is_found(empty_database: str, bounded: Bounded) -> None:
    address, name = empty_database.partition("?")[0], f"late_{empty_database.partition('?')[0].rpartition('/')[2]}"
    other = await asyncpg.connect(empty_database)
    connection = StandingConnection(StandingConfig(dsn=empty_database.replace(address, f"{address.rpartition('/')[0]}/{name}")))
    await connection.start()
    with pytest.raises(DatabaseUnavailable):
        await connection.try_lock(LEADER, 1)
    await other.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    try:
        async with bounded():
            await connection.started.wait()
            assert await connection.try_lock(LEADER, 1)
    finally:
        await connection.stop()
        await other.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await other.close()
