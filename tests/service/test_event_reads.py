"""What reading a timeline costs, in reads and bytes: bounded for one reader, nothing for those of a quiet Session. [E3], [E4], I7."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from tests.service.scripted import House, Process, house

from helmr.control.store.queries import events
from helmr.protocol.errors import InvalidCursor
from helmr.protocol.limits import EVENTS_PAGE_BYTES

pytestmark = pytest.mark.anyio
LARGE = 250_000


class Reads:
    """Counts what is read of the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions: list[str] = []
        self.bytes = 0
        self._read = events.events_after
        monkeypatch.setattr(events, "events_after", self.count)

    async def count(self, connection: Any, *, session_id: str, **rest: Any) -> Any:
        rows = await self._read(connection, session_id=session_id, **rest)
        self.sessions.append(session_id)
        self.bytes += sum(len(row["data"]) for row in rows)
        return rows


async def written(h: House, session: str, process: Process, turns: int, count: int, size: int) -> None:
    """Turns that said so much."""
    for _ in range(turns):
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        for _ in range(count):
            await process.acknowledged(process.output(turn, "x" * size))
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"


@pytest.mark.ud("UD-55")
async def test_a_page_of_large_events_reads_no_more_than_it_gives(database: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 asked for, 4 MiB given, 4 MiB read; page after page brings them all."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        await written(h, session, process, 2, 30, LARGE)
        reads = Reads(monkeypatch)
        after, sequences = 0, []
        while True:
            before = reads.bytes
            page = json.loads(await h.plane.events.page(h.principal, session, after, 1000))
            assert reads.bytes - before <= EVENTS_PAGE_BYTES
            sequences += [record["sequence"] for record in page["records"]]
            assert page["next_after"] == sequences[-1]
            after = page["next_after"]
            if not page["has_more"]:
                break
        assert sequences == list(range(1, len(sequences) + 1))
        assert len(sequences) > 60 and len(reads.sessions) >= 60 * LARGE / EVENTS_PAGE_BYTES


@pytest.mark.ud("UD-55")
async def test_a_page_of_turns_with_large_payloads_is_bounded_and_the_next_one_goes_on(database: str, tmp_path: Any) -> None:
    """A hundred Turns may hold 75 MB: nobody who lists them makes the control plane hold that."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        for _ in range(24):
            turn = (await h.enqueue(session))["id"]
            await process.began(turn)
            process.settle(turn, result="x" * LARGE, response=[{"type": "text", "text": "y" * LARGE}])
            await h.turn(session, turn)
        found: list[int] = []
        cursor, pages = None, 0
        while True:
            page = await h.plane.turns.list(h.principal, session, cursor, 100)
            assert 1 <= len(page.items) <= EVENTS_PAGE_BYTES // (2 * LARGE) + 1
            found += [turn.sequence for turn in page.items]
            cursor, pages = page.next_cursor, pages + 1
            if cursor is None:
                break
        assert found == list(range(1, 26)) and pages >= 3
        assert (await h.plane.turns.list(h.principal, session, "9007199254740991", 100)).items == ()
        last = await h.plane.turns.list(h.principal, session, "24", 1)
        assert (len(last.items), last.next_cursor) == (1, None)


@pytest.mark.ud("UD-52")
async def test_a_follower_far_behind_holds_little_of_the_log_at_a_time(
    database: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        await written(h, session, process, 1, 20, LARGE)
        await written(h, session, process, 1, 500, 10)
        reads = Reads(monkeypatch)
        seen: list[int] = []
        async with aclosing(h.plane.events.follow(h.principal, session, 0)) as batches:  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                assert sum(len(event.body) for event in batch) <= 300_000
                seen += [event.sequence for event in batch]
                if len(seen) > 520:
                    break
        assert seen == list(range(1, len(seen) + 1))
        assert reads.bytes < 21 * LARGE


async def test_what_happens_in_one_session_makes_no_other_sessions_readers_read(
    database: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five hundred idle followers cost a Turn of another Session not one read, and its own follower reads no log while it keeps up."""
    async with house(database, tmp_path) as h:
        busy, process = await h.warm()
        idle = [(await h.create(None))["session"]["id"] for _ in range(25)]
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(aclosing(h.plane.events.follow(h.principal, session, 0)))  # pyright: ignore[reportArgumentType]
                for session in idle * 20
            ]
            for reader in readers:
                assert await anext(reader) == [] or True
            waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
            mine = await stack.enter_async_context(aclosing(h.plane.events.follow(h.principal, busy, 0)))  # pyright: ignore[reportArgumentType]
            await anext(mine)
            reads = Reads(monkeypatch)
            turn = (await h.enqueue(busy))["id"]
            await process.began(turn)
            for number in range(100):
                process.output(turn, str(number))
            process.settle(turn)
            kinds: list[str] = []
            async with asyncio.timeout(5):
                while "turn.completed" not in kinds:
                    kinds += [event.kind for event in await anext(mine)]
            assert kinds.count("turn.output") == 100
            assert set(reads.sessions) <= {busy}
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_stream_ends_when_the_session_is_sealed_and_not_when_it_closes(database: str, tmp_path: Any) -> None:
    """[E4]: closed by a cancel at once, while its process is still ending; the stream stays open until that is told."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        h.host._session_kill = lambda said: None  # type: ignore[method-assign]  # this host takes its time
        async with aclosing(h.plane.events.follow(h.principal, session, 0)) as batches:  # pyright: ignore[reportArgumentType]
            await h.plane.controls.cancel(h.principal, session, None)
            kinds: list[str] = []
            async with asyncio.timeout(5):
                while "session.closed" not in kinds:
                    kinds += [event.kind for event in await anext(batches)]
            assert (await h.session(session))["status"] == "closed"
            assert json.loads(await h.plane.events.page(h.principal, session, 0, 1000))["sealed"] is False
            following = asyncio.ensure_future(anext(batches))
            assert await h.session(session)  # a whole round to the database and back
            assert not following.done() or "session.process" in following.result()[0].kind
            process.die("killed")
            async with asyncio.timeout(5):
                kinds += [event.kind for event in await following]
                async for batch in batches:
                    kinds += [event.kind for event in batch]
        assert kinds[-1].startswith("session.process_")
        assert json.loads(await h.plane.events.page(h.principal, session, 0, 1000))["sealed"] is True
        assert [event["kind"] for event in await h.events(session)] == kinds


async def test_a_stream_from_beyond_the_end_is_refused(database: str, tmp_path: Any) -> None:
    """[E3]: at the end is fine, one beyond is `invalid_cursor`."""
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        last = len(await h.events(session))
        async with aclosing(h.plane.events.follow(h.principal, session, last)) as batches:  # pyright: ignore[reportArgumentType]
            assert await anext(batches) == []
        with pytest.raises(InvalidCursor):
            await anext(aiter(h.plane.events.follow(h.principal, session, last + 1)))


async def test_readers_of_timelines_leave_connections_to_everybody_else(
    database: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many read at once, and however long it takes them (UD-52): no request of others finds the database "away"."""
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        go_on, full = asyncio.Event(), asyncio.Event()
        reading = most = 0
        read = events.events_after

        async def slow(connection: Any, **rest: Any) -> Any:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            full.set()
            await go_on.wait()
            reading -= 1
            return await read(connection, **rest)

        monkeypatch.setattr(events, "events_after", slow)
        async with asyncio.timeout(60):
            pages = [asyncio.create_task(h.plane.events.page(h.principal, session, 0, 1000)) for _ in range(50)]
            await full.wait()
            for _ in range(20):  # each needs a connection, while all who read timelines keep theirs
                assert (await h.session(session))["status"] == "open"
            go_on.set()
            found = await asyncio.gather(*pages)
        assert len({bytes(page) for page in found}) == 1
        assert most <= 2
