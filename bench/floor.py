"""The floor: what the same work costs straight on PostgreSQL, without HTTP, processes or an Agent. Four commits a Turn, one connection a
Session up to 32, prepared statements; measured in the same run and on the same server as ours."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

import asyncpg

_TABLES = """
CREATE TABLE floor_session (id int PRIMARY KEY, last bigint NOT NULL DEFAULT 0);
CREATE TABLE floor_turn (session int, number int, input text, status text, result text, PRIMARY KEY (session, number));
CREATE TABLE floor_event (session int, number bigint, kind text, data text, PRIMARY KEY (session, number));
CREATE FUNCTION floor_say(s int, k text, d text) RETURNS bigint LANGUAGE sql AS $$
    WITH next AS (UPDATE floor_session SET last = last + 1 WHERE id = s RETURNING last)
    INSERT INTO floor_event SELECT s, last, k, d FROM next RETURNING number $$;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    turn_p50_ms: float
    turns_per_second: float
    chunks_per_second: float
    create_seconds: float
    """10,000 rows, one commit each."""


async def measure(dsn: str, *, turns: int, sessions: int) -> Floor:
    pool = await asyncpg.create_pool(dsn, min_size=32, max_size=32)
    try:
        await pool.execute(_TABLES)
        started = time.perf_counter()
        await asyncio.gather(*[_create(pool, range(first, 10_000, 32)) for first in range(32)])
        create = time.perf_counter() - started
        laps: list[float] = []
        for number in range(turns):
            started = time.perf_counter()
            await _turn(pool, 0, number)
            laps.append(time.perf_counter() - started)
        started = time.perf_counter()
        await asyncio.gather(*[_turns(pool, session, 10) for session in range(1, sessions + 1)])
        many = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(500):
            await pool.execute("SELECT floor_say($1, 'output', $2)", 9999, "x" * 50)
        chunks = 500 / (time.perf_counter() - started)
    finally:
        await pool.close()
    return Floor(
        turn_p50_ms=statistics.median(laps) * 1000,
        turns_per_second=sessions * 10 / many,
        chunks_per_second=chunks,
        create_seconds=create,
    )


async def _create(pool: asyncpg.Pool, ids: range) -> None:
    for number in ids:
        await pool.execute("INSERT INTO floor_session (id) VALUES ($1)", number)


async def _turns(pool: asyncpg.Pool, session: int, count: int) -> None:
    for number in range(count):
        await _turn(pool, session, number)


async def _turn(pool: asyncpg.Pool, session: int, number: int) -> None:
    async with pool.acquire() as connection:
        async with connection.transaction():
            await connection.execute("INSERT INTO floor_turn VALUES ($1, $2, $3, 'queued', NULL)", session, number, "input")
            await connection.execute("SELECT floor_say($1, 'queued', '')", session)
        async with connection.transaction():
            await connection.execute("UPDATE floor_turn SET status = 'running' WHERE session = $1 AND number = $2", session, number)
            await connection.execute("SELECT floor_say($1, 'running', '')", session)
        await connection.execute("SELECT floor_say($1, 'output', $2)", session, "x" * 50)
        async with connection.transaction():
            await connection.execute(
                "UPDATE floor_turn SET status = 'done', result = $3 WHERE session = $1 AND number = $2", session, number, "result"
            )
            await connection.execute("SELECT floor_say($1, 'completed', '')", session)
