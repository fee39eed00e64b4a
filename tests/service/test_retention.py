"""The end of what was said in closed Sessions: by request, by age, in pieces, over crashes. SPEC [S22], [S4], [E3], [E4]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.service.scripted import House, Process, house

from helmr import sync
from helmr.client import ExpiredTurn, FailedTurn, HelmrClient, RetryPolicy
from helmr.control.api.app import build_app
from helmr.control.listener import Listener, ListenerConfig
from helmr.control.service import events as events_service
from helmr.control.service import retention as service
from helmr.control.service.faults import arm, disarm
from helmr.control.service.limits import EnvironmentLimits, Limits
from helmr.control.service.plane import ControlPlane
from helmr.control.service.principals import create_key
from helmr.control.service.recent import Recent
from helmr.control.store.queries import events
from helmr.control.upkeep.receipts import OldReceipts
from helmr.control.upkeep.retention import PayloadExpiry
from helmr.objects.folder import FolderStore
from helmr.protocol.errors import CursorExpired, Forbidden, IdempotencyConflict, SessionNotClosed, SessionNotFound

pytestmark = pytest.mark.anyio

SECRET = "the-word-that-must-go"
DAY_MS = 86_400_000


def said(text: str = SECRET) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


async def spoken(h: House) -> tuple[str, Process, list[str]]:
    """An open, idle Session in which the secret was said in every way there is."""
    made = await h.create(SECRET, idempotency_key="create")
    session = made["session"]["id"]
    process = await h.host.next_process()
    first = made["turn"]["id"]
    await process.began(first)
    process.say("messages.open", turn=first)
    await process.acknowledged(process.op)
    message = json.loads((await h.plane.turns.send(h.principal, session, first, said(), "send")).body)["id"]
    process.say("message.started", id=message, turn=first)
    process.say("message.rejected", id=message, turn=first, reason="message_rejected", detail=SECRET)
    question = {"prompt": said(), "answer": {"type": "text"}}
    process.say("question.ask", turn=first, question=question)
    asked = (await h.until(session, "question.asked"))["data"]["question_id"]
    answer = {"type": "text", "text": SECRET}
    await h.plane.questions.respond(h.principal, session, first, asked, answer, "r", "respond")
    process.say("messages.closed", turn=first)
    process.output(first, SECRET)
    process.settle(first, result={"it": SECRET}, response=said())
    await h.turn(session, first)
    second = (await h.enqueue(session, SECRET, key="enqueue"))["id"]
    await process.began(second)
    process.settle(second, "failed", error={"code": "handler_failed", "message": SECRET, "details": {"why": SECRET}})
    await h.turn(session, second)
    return session, process, [first, second]


async def ended(h: House, session: str, process: Process | None) -> None:
    """Close the Session and wait until it is sealed."""
    await h.plane.controls.close(h.principal, session, None)
    if process is not None:
        await process.heard("session.end")
        process.die("exited")
    async with asyncio.timeout(5):
        async for _ in h.plane.events.follow(h.principal, session, 0):
            pass


async def delete(h: House, session: str, key: str | None = None) -> dict[str, Any]:
    return json.loads((await h.plane.retention.delete_data(h.principal, session, key)).body)


async def page(h: House, session: str, after: int) -> dict[str, Any]:
    return json.loads(await h.plane.events.page(h.principal, session, after, 100))


async def database_text(h: House) -> str:
    """Every value of every table, as text."""
    async with h.database.connection() as connection:
        tables = await connection.fetch("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        found = []
        for table in tables:
            columns = await connection.fetch(
                "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = $1", table["table_name"]
            )
            for column in columns:
                name = f'"{column["column_name"]}"'
                text = f"encode({name}, 'escape')" if column["data_type"] == "bytea" else f"{name}::text"
                rows = await connection.fetch(f'SELECT {text} AS value FROM "{table["table_name"]}"')
                found += [f"{table['table_name']}.{name} {row['value']}" for row in rows]
    return "\n".join(found)


async def test_what_was_said_goes_and_what_happened_stays(database, tmp_path):
    """[S22], member by member: no table holds the word any more; Turns, message and question keep ids, statuses, times and codes."""
    async with house(database, tmp_path) as h:
        session, process, (first, second) = await spoken(h)
        await ended(h, session, process)
        before = [await h.turn(session, turn, 0) for turn in (first, second)]
        assert (await database_text(h)).count(SECRET) > 12
        assert SECRET not in json.dumps(await h.session(session))
        timeline = await h.events(session)

        receipt = await delete(h, session)

        assert receipt["session_id"] == session
        assert SECRET not in await database_text(h)
        after = [await h.turn(session, turn, 0) for turn in (first, second)]
        for was, state in zip(before, after, strict=True):
            gone = {"input", "result", "response", "error"}
            kept = {name: value for name, value in was.items() if name not in gone}
            assert kept | {"payload_expired_at": receipt["payload_expired_at"]} == {
                name: value for name, value in state.items() if name != "error"
            }
        assert "error" not in after[0]
        assert after[1]["error"] == {"code": "handler_failed"}
        listed = await h.plane.turns.list(h.principal, session, None, 50)
        assert [item.payload_expired_at for item in listed.items] == [receipt["payload_expired_at"]] * 2
        questions = json.loads(await h.plane.questions.list(h.principal, session, first, (), None, 50))["items"]
        assert [(q["status"], q["payload_expired_at"]) for q in questions] == [("responded", receipt["payload_expired_at"])]
        assert "question" not in questions[0] and "answer" not in questions[0] and questions[0]["responded_by"]
        async with h.database.connection() as connection:
            message = await connection.fetchrow("SELECT status, content FROM messages")
        assert tuple(message) == ("rejected", None)

        with pytest.raises(CursorExpired) as refused:
            await page(h, session, 0)
        assert refused.value.facts["retained_after"] == len(timeline)
        empty = await page(h, session, len(timeline))
        assert empty == {
            "records": [], "next_after": len(timeline), "has_more": False, "retained_after": len(timeline), "sealed": True
        }  # fmt: skip


async def test_receipts_still_answer_exact_retries_and_bring_nothing_back(database, tmp_path):
    """[S4], [S22]: the original receipts, after the data is gone; they name ids alone."""
    async with house(database, tmp_path) as h:
        session, process, (first, second) = await spoken(h)
        question = json.loads(await h.plane.questions.list(h.principal, session, first, (), None, 50))["items"][0]["id"]
        await ended(h, session, process)
        await delete(h, session)
        again = [
            await h.plane.sessions.create(h.principal, agent="talker", input=said(), idempotency_key="create"),
            await h.plane.turns.enqueue(h.principal, session, said(), "enqueue"),
            await h.plane.turns.send(h.principal, session, first, said(), "send"),
            await h.plane.questions.respond(h.principal, session, first, question, {"type": "text", "text": SECRET}, "r", "respond"),
        ]
        assert all(reply.replayed for reply in again)
        assert SECRET.encode() not in b"".join(reply.body for reply in again)
        assert json.loads(again[0].body)["turn"]["id"] == first and json.loads(again[1].body)["id"] == second
        with pytest.raises(IdempotencyConflict):
            await h.plane.turns.enqueue(h.principal, session, said("other"), "enqueue")


async def test_only_a_closed_session_of_the_environment_is_expired_and_only_with_the_permission(database, tmp_path):
    """[S22], [O1]: open and closing are refused, and refusals are not remembered."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session, SECRET))["id"]
        await process.began(turn)
        with pytest.raises(SessionNotClosed):
            await delete(h, session, "k")
        await h.plane.controls.close(h.principal, session, None)
        assert (await h.session(session))["status"] == "closing"
        with pytest.raises(SessionNotClosed):
            await delete(h, session, "k")
        process.settle(turn)
        await h.until(session, "session.closed")
        with pytest.raises(SessionNotFound):
            await delete(h, "00000000-0000-7000-8000-00000000dead")
        weak = type(h.principal)(
            id=h.principal.id, environment_id=h.principal.environment_id, kind="api_key", permissions=frozenset({"sessions.read"})
        )
        with pytest.raises(Forbidden):
            await h.plane.retention.delete_data(weak, session, "k")
        assert "payload_expired_at" not in await h.turn(session, turn, 0)
        first = await delete(h, session, "k")
        assert await delete(h, session, "k") == first
        assert await delete(h, session, "another") == first, "when it was decided does not change"


async def test_the_events_of_a_just_closed_session_stay_until_it_is_sealed(database, tmp_path):
    """[E4], [S22]: whoever follows it reads the end; then the duty takes them."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        seen: list[str] = []

        async def follow() -> None:
            async for batch in h.plane.events.follow(h.principal, session, 0):
                seen.extend(event.kind for event in batch)

        following = asyncio.create_task(follow())
        await h.plane.controls.close(h.principal, session, None)
        await delete(h, session)
        assert (await page(h, session, 0))["retained_after"] == 0
        assert not await PayloadExpiry(h.plane).run()
        kinds = [record["kind"] for record in (await page(h, session, 0))["records"]]
        assert kinds[-1] == "session.closed"
        await process.heard("session.end")
        process.die("exited")
        async with asyncio.timeout(5):
            await following
        assert seen[: len(kinds)] == kinds and seen[-1] == "session.process_stopped"
        await PayloadExpiry(h.plane).run()
        with pytest.raises(CursorExpired):
            await page(h, session, 0)


async def test_retention_takes_closed_sessions_by_age_and_never_an_open_one(database, tmp_path):
    """[S22]: N days after the Session closed; `never` keeps them."""
    async with house(database, tmp_path) as h:
        old, young, open_ = [(await h.create(None))["session"]["id"] for _ in range(3)]
        closing, process = await h.warm()
        sessions = [old, young, open_, closing]
        for session in sessions[:3]:
            await h.plane.controls.interrupt(h.principal, session, None)
        for session in sessions:
            turn = (await h.enqueue(session, SECRET))["id"]
        await process.began(turn)
        await h.plane.controls.close(h.principal, closing, None)
        for session in (old, young):
            await h.plane.controls.cancel(h.principal, session, None)
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET closed_at = now() - interval '3 days 1 minute' WHERE id = $1", old)
            await connection.execute("UPDATE sessions SET closed_at = now() - interval '2 days 23 hours' WHERE id = $1", young)
            await connection.execute(
                "UPDATE sessions SET created_at = now() - interval '90 days' WHERE id = ANY ($1::uuid[])", [open_, closing]
            )

        async def expired() -> set[str]:
            await PayloadExpiry(h.plane).run()
            pages = [await h.plane.turns.list(h.principal, session, None, 50) for session in sessions]
            return {p.items[0].session_id for p in pages if p.items[0].payload_expired_at}

        assert await expired() == set()
        await Limits(h.database).set(h.principal.environment_id, EnvironmentLimits(payload_retention_ms=3 * DAY_MS))
        assert await expired() == {old}
        await Limits(h.database).set(h.principal.environment_id, EnvironmentLimits(payload_retention_ms=2 * DAY_MS))
        assert await expired() == {old, young}
        await Limits(h.database).set(h.principal.environment_id, EnvironmentLimits(payload_retention_ms=None))
        assert await expired() == {old, young}
        assert (await h.session(closing))["status"] == "closing"
        assert (await page(h, open_, 0))["retained_after"] == (await page(h, closing, 0))["retained_after"] == 0
        assert (await h.turn(open_, (await h.session(open_))["initial_turn"]["id"], 0))["input"] == said()


async def _large(h: House, turns: int) -> str:
    """A closed Session with many Turns; sealed, since what was held never had a process."""
    session = (await h.create(None))["session"]["id"]
    await h.plane.controls.interrupt(h.principal, session, None)
    await asyncio.gather(*[h.enqueue(session, SECRET) for _ in range(turns)])
    await h.plane.controls.cancel(h.principal, session, None)
    return session


async def test_every_commit_of_an_expiry_leaves_a_readable_session_and_a_crash_only_delays_it(database, tmp_path, monkeypatch):
    """[S22], STYLE 18: killed after each commit in turn; what is left is gone after the duty's next run."""
    monkeypatch.setattr(service, "TURNS", 3)
    monkeypatch.setattr(service, "EVENTS", 4)

    class Killed(Exception):
        pass

    async with house(database, tmp_path) as h:
        for point in ("after_commit:delete_data", "before_commit:expire", "after_commit:expire"):
            for passes in (1, 3, 6):
                session = await _large(h, 8)
                timeline = await h.events(session)
                left = [passes if point.endswith("expire") else 1]

                def die(left: list[int] = left) -> None:
                    left[0] -= 1
                    if left[0] == 0:
                        raise Killed

                arm(point, die)
                try:
                    with pytest.raises(Killed):
                        await delete(h, session, "k")
                finally:
                    disarm(point)
                await _check_pieces(h, session, timeline)
                await PayloadExpiry(h.plane).run()
                listed = await h.plane.turns.list(h.principal, session, None, 50)
                assert all(item.payload_expired_at and not item.input for item in listed.items)
                assert (await page(h, session, len(timeline)))["retained_after"] == len(timeline)
                assert (await h.plane.retention.delete_data(h.principal, session, "k")).replayed
        assert SECRET not in await database_text(h)


async def _check_pieces(h: House, session: str, timeline: list[dict[str, Any]]) -> None:
    """Half expired: each Turn has its payload or says that it is gone; the timeline is whole above `retained_after`."""
    async with h.database.connection() as connection:
        rows = await connection.fetch("SELECT input, payload_expired_at FROM turns WHERE session_id = $1", session)
        retained: int = await connection.fetchval("SELECT retained_after FROM sessions WHERE id = $1", session)
    assert all((row["input"] is None) == (row["payload_expired_at"] is not None) for row in rows)
    assert (await page(h, session, retained))["records"] == timeline[retained:]
    for below in range(retained):
        with pytest.raises(CursorExpired):
            await page(h, session, below)


async def test_a_reader_between_two_looks_at_the_log_gets_the_expiry_not_a_gap(database, tmp_path, monkeypatch):
    """[E1], [E3]: the events go after the reader looked where the timeline ends and before it reads them."""
    async with house(database, tmp_path) as h:
        read = events.events_after
        target: list[str] = []

        async def late(connection: Any, **parameters: Any) -> Any:
            monkeypatch.setattr(events, "events_after", read)
            await delete(h, target[-1])
            return await read(connection, **parameters)

        async def follow() -> Any:
            return await anext(aiter(h.plane.events.follow(h.principal, target[-1], 0)))

        for reader in (lambda: page(h, target[-1], 0), follow):
            target.append(await _large(h, 3))
            monkeypatch.setattr(events, "events_after", late)
            with pytest.raises(CursorExpired):
                await reader()


async def test_a_control_plane_that_remembers_a_turn_forgets_it_when_another_one_expires_it(database, tmp_path):
    """[S22], I6: by notice at once; without it a remembered row is believed for a minute at most."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session, SECRET))["id"]
        await process.began(turn)
        process.settle(turn, result=SECRET)
        assert (await h.turn(session, turn))["result"] == SECRET
        await ended(h, session, process)
        other = ControlPlane(h.database, FolderStore(tmp_path / "blobs"))
        await other.start()
        try:
            await other.beat()
            payloads: list[str] = []
            async with h.database.connection() as connection:
                await connection.add_listener("helmr_session", lambda *notice: payloads.append(notice[3]))
                await other.retention.delete_data(h.principal, session, None)
                async with asyncio.timeout(5):
                    while not payloads:
                        await connection.fetchval("SELECT 1")
                for payload in payloads:
                    h.plane.noticed(payload)
                await connection.reset(timeout=5)
        finally:
            await other.stop()
        assert "result" not in await h.turn(session, turn, 0)
    now = [0.0]
    recent = Recent(lambda: now[0])
    recent.put("t", {"session_id": "s", "status": "completed"})
    now[0] = 60.0
    assert recent.get("t") is not None
    now[0] = 60.1
    assert recent.get("t") is None and recent.get("t") is None


async def test_old_receipts_are_forgotten_unless_their_session_is_still_there_to_be_worked_with(database, tmp_path):
    """[S4]: only after 30 days and only once the Session is closed; a request of a forgotten receipt is a new one."""
    async with house(database, tmp_path) as h:
        closed = (await h.create(None, idempotency_key="closed"))["session"]["id"]
        young = (await h.create(None, idempotency_key="young"))["session"]["id"]
        open_ = (await h.create(None, idempotency_key="open"))["session"]["id"]
        await h.enqueue(open_, "x", key="turn")
        for session in (closed, young):
            await h.plane.controls.cancel(h.principal, session, "cancel")
        async with h.database.connection() as connection:
            age = "UPDATE idempotency SET created_at = now() - $2::interval WHERE session_id = $1"
            await connection.execute(age, closed, timedelta(days=30, minutes=1))
            await connection.execute(age, open_, timedelta(days=400))
            await connection.execute(age, young, timedelta(days=29, hours=23))
            await connection.execute(
                "INSERT INTO idempotency VALUES ($1, $1, 'deployments.publish', '', 'k', '', '', NULL, now() - interval '31 days')", closed
            )
        while await OldReceipts(h.plane).run():
            pass
        async with h.database.connection() as connection:
            rows = await connection.fetch("SELECT session_id::text, operation FROM idempotency ORDER BY 1, 2")
        assert {row["session_id"] for row in rows} == {young, open_}
        assert len(rows) == 4
        again = await h.create(None, idempotency_key="closed")
        assert again["session"]["id"] != closed
        assert (await h.create(None, idempotency_key="open"))["session"]["id"] == open_


@asynccontextmanager
async def client_of(h: House, *, patience: float = 5.0) -> AsyncIterator[tuple[HelmrClient, str, str]]:
    """A client of the real API in front of this control plane; its address and key, too."""
    listener = Listener(ListenerConfig())
    async with h.database.connection() as connection:
        key = await create_key(connection, h.principal.environment_id, "client")
    await listener.start(build_app(h.plane))
    try:
        async with HelmrClient(listener.url, key, retry=RetryPolicy(patience=patience)) as client:
            yield client, listener.url, key
    finally:
        await listener.stop()


async def test_clients_read_the_expiry_of_outcomes_and_timelines(database, tmp_path):
    """[S22], [E3], [E4], SPEC 12: typed outcomes with expiry, 410 for pages and streams below `retained_after`, the end above it."""
    async with house(database, tmp_path) as h:
        session, process, (first, second) = await spoken(h)
        await ended(h, session, process)
        last = len(await h.events(session))
        async with client_of(h) as (client, url, key):
            ref = client.sessions.ref(session)
            early = ref.events.stream()
            assert (await anext(early)).sequence == 1
            receipt = await ref.delete_data()
            completed = await ref.turns.ref(first).wait()
            assert isinstance(completed, ExpiredTurn)
            assert completed.payload_expired_at == receipt.payload_expired_at
            failed = await ref.turns.ref(second).wait()
            assert isinstance(failed, FailedTurn) and failed.error is not None
            assert (failed.error.code, failed.payload_expired_at) == ("handler_failed", receipt.payload_expired_at)
            with pytest.raises(CursorExpired) as refused:
                await ref.events.list()
            assert refused.value.facts["retained_after"] == last
            with pytest.raises(CursorExpired):
                await anext(ref.events.stream(after=last - 1))
            assert [event async for event in ref.events.stream(after=last)] == []
            rest = [event.sequence async for event in early]
            assert rest == list(range(2, last + 1)), "what was on its way arrives"
            with pytest.raises(SessionNotClosed):
                await (await client.sessions.create(agent="talker")).session.delete_data()

            def blocking() -> str:
                with sync.HelmrClient(url, key) as blocked:
                    return blocked.sessions.ref(session).delete_data().payload_expired_at

            assert await asyncio.to_thread(blocking) == receipt.payload_expired_at


async def test_a_stream_whose_next_events_expire_while_it_catches_up_raises_it(database, tmp_path, monkeypatch):
    """[E4]: the reply is cut without `event: end`, the client comes again after what it has, and is told."""
    monkeypatch.setattr(events_service, "EVENTS_PAGE_MAX", 2)
    async with house(database, tmp_path) as h:
        session = await _large(h, 6)
        read = events.events_after
        reads = 0

        async def second_is_late(connection: Any, **parameters: Any) -> Any:
            nonlocal reads
            reads += 1
            if reads == 2:
                await delete(h, session)
            return await read(connection, **parameters)

        monkeypatch.setattr(events, "events_after", second_is_late)
        seen: list[int] = []
        async with client_of(h) as (client, _, _):
            with pytest.raises(CursorExpired):
                async for event in client.sessions.ref(session).events.stream():
                    seen.append(event.sequence)
        assert seen == [1, 2]
