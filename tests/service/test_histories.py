"""A Session costs the same whatever its history: each operation reads as many pages of the database. UD-54, [E3], DESIGN 7."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bench.history import OPERATIONS, TEXT, History, history, installation

from helmr.control.service.plane import ControlPlane
from helmr.control.service.principals import Principal
from helmr.control.store.flush import Batch, Claim, Flushed, Settle, _outcomes, _parameters
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import events
from helmr.protocol.ids import new_id

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

READ = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")


class Counting:
    """A connection that explains each statement before it runs it, and adds up the pages that it touched."""

    def __init__(self, connection: Any, database: CountingDatabase) -> None:
        self._connection, self._database = connection, database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, statement: str, *values: Any, **options: Any) -> Any:
        await self._explain(statement, values)
        return await self._connection.fetch(statement, *values, **options)

    async def fetchrow(self, statement: str, *values: Any, **options: Any) -> Any:
        await self._explain(statement, values)
        return await self._connection.fetchrow(statement, *values, **options)

    async def fetchval(self, statement: str, *values: Any, **options: Any) -> Any:
        await self._explain(statement, values)
        return await self._connection.fetchval(statement, *values, **options)

    async def execute(self, statement: str, *values: Any, **options: Any) -> Any:
        await self._explain(statement, values)
        return await self._connection.execute(statement, *values, **options)

    async def _explain(self, statement: str, values: tuple[Any, ...]) -> None:
        if not _plain(statement).startswith(READ):
            return
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            found = await self._connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}", *values)
        finally:
            await transaction.rollback()
        self._database.pages += _pages(json.loads(found)[0]["Plan"])


class CountingDatabase(Database):
    """Counts the pages that statements touch."""

    pages = 0

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        async with super().connection() as connection:
            yield Counting(connection, self)


class CountingFlush:
    """`Flushes` on counted connections."""

    def __init__(self, database: CountingDatabase) -> None:
        self._database = database

    async def flush(self, batch: Batch, *, wait: bool, origin: str | None) -> dict[str, list[Flushed]]:
        marks = ",".join(f"${number}" for number in range(1, 26))
        async with self._database.connection() as connection:
            for name in ("enable_seqscan", "enable_bitmapscan", "enable_mergejoin"):
                await connection.execute(f"SET {name} = off")
            return _outcomes(await connection.fetch(f"SELECT * FROM flush_v2({marks})", *_parameters(batch, wait, origin)))


def _plain(statement: str) -> str:
    lines = [line for line in statement.strip().splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).lstrip().upper()


def _pages(plan: dict[str, Any]) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def run_turn(plane: ControlPlane, principal: Principal, h: History) -> Any:
    """A Turn of a warm Session: claimed, written to, settled."""
    async with plane.database.connection() as connection:
        await connection.execute("UPDATE sessions SET process = 'ready', channel = 1, held = 0, last_op = 0 WHERE id = $1", h.session_id)
    claimed = await plane._batcher.submit(Claim(session_id=h.session_id))
    assert claimed.next_turn is not None
    settle = Settle(session_id=h.session_id, channel=1, op=1, turn_id=claimed.next_turn.id, status="completed", result=b"1")
    assert (await plane._batcher.submit(settle)).outcome == "ok"


async def locate(plane: ControlPlane, principal: Principal, h: History) -> Any:
    """An output of the last Turn, by its place."""
    async with plane.database.connection() as connection:
        assert await events.nth_output(connection, session_id=h.session_id, turn_id=h.turn_ids[-1], skipped=3) == h.events - 4


MORE = {
    "a Turn, claimed and settled": run_turn,
    "an output located": locate,
    "close": lambda plane, principal, h: plane.controls.close(principal, h.session_id, None),
    "cancel": lambda plane, principal, h: plane.controls.cancel(principal, h.session_id, None),
}


@pytest.mark.ud("UD-54")
@pytest.mark.parametrize("turns", [2_000, pytest.param(20_000, marks=pytest.mark.soak)])
async def test_no_operation_reads_more_of_a_session_that_has_had_many_turns(database, tmp_path, turns):
    counted = CountingDatabase(database)
    await counted.start()
    plane, principal = await installation(counted, tmp_path)
    plane._batcher._flushes = CountingFlush(counted)
    try:
        short, long = await history(plane, principal, 10), await history(plane, principal, turns)
        async with counted.connection() as connection:
            await connection.execute("ANALYZE")
        for session in (short, long):
            await plane.turns.enqueue(principal, session.session_id, TEXT, None)
        grown: dict[str, tuple[int, int]] = {}
        for name, operation in {**OPERATIONS, **MORE}.items():
            pages: list[int] = []
            for session in (short, long):
                for _ in range(1 if name in MORE else 2):  # the first of a kind also reads what is then remembered
                    await _still(plane)
                    counted.pages = 0
                    await operation(plane, principal, session)
                pages.append(counted.pages)
            if pages[1] > 1.5 * pages[0] + 8:  # an index of a longer history may have a level more
                grown[name] = (pages[0], pages[1])
        assert not grown, "pages read of a short history and of a long one"
    finally:
        await plane.stop()
        await counted.stop()


async def _still(plane: ControlPlane) -> None:
    """What followed from the last operation is over."""
    async with asyncio.timeout(5):
        while plane.dispatcher.background._tasks:
            await asyncio.sleep(0.001)


async def test_the_pages_that_are_counted_are_those_that_a_scan_of_a_history_would_touch(database, tmp_path):
    """The measure itself: a statement that reads a whole history is seen to."""
    counted = CountingDatabase(database)
    await counted.start()
    plane, principal = await installation(counted, tmp_path)
    try:
        pages: list[int] = []
        for session in (await history(plane, principal, 10), await history(plane, principal, 2_000)):
            counted.pages = 0
            async with counted.connection() as connection:
                await connection.fetchval("SELECT count(data) FROM events WHERE session_id = $1", session.session_id)
            pages.append(counted.pages)
        assert pages[1] > 20 * pages[0]
        with pytest.raises(Exception, match="session_not_found"):
            await plane.events.page(principal, new_id(), 0, 10)
    finally:
        await plane.stop()
        await counted.stop()
