"""The flush alone: it permits exactly the table's transitions, and decides only after it has the locks.

DESIGN 7, I1-I3; SPEC [S8], [S11].
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helmr.control.domain.turns import DRAINED, TRANSITIONS, settled_status
from helmr.control.store.flush import Admit, Append, Batch, Claim, Flushed, PostgresFlush, Settle
from helmr.control.store.pool import Database
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio

STATUSES = ("queued", "running", "completed", "failed", "interrupted", "cancelled")
MARKS = (None, "turn_interrupted", "session_interrupted", "deadline", "handler_failed", "message_handler_failed")


class Bench:
    """One database with rows made by hand, and two flushers."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.first, self.second = PostgresFlush(database), PostgresFlush(database)

    async def session(self, turn: str | None = None, *, mark: str | None = None, **columns: Any) -> tuple[str, str]:
        """A ready Session whose only Turn has that status; its id and the Turn's."""
        session, turn_id = new_id(), new_id()
        values: dict[str, Any] = {"process": "ready", "channel": 1, "held": 0, "status": "open", "loose": 0} | columns
        running, claimed = turn == "running", turn is not None and turn != "queued"
        async with self.database.connection() as connection:
            await connection.execute(
                """INSERT INTO sessions (id, environment_id, deployment_id, agent, template, input_kind, root_session_id, created_at,
                    process, channel, held, status, loose, next_turn, claimed_turn, running_turn, stop_cause, stop_error, stop_at)
                VALUES ($1, $1, $1, 'a', 't', 'text', $1, now(), $2, $3, $4, $5, $6, $7, $8, $9, $10,
                    CASE WHEN $10::text IN ('deadline', 'handler_failed', 'message_handler_failed') THEN '{"code":"x"}'::bytea END,
                    CASE WHEN $10::text IS NOT NULL THEN now() END)""",
                session,
                values["process"],
                values["channel"],
                values["held"],
                values["status"],
                values["loose"],
                1 if turn is None else 2,
                int(claimed),
                turn_id if running else None,
                mark,
            )
            if turn is not None:
                await connection.execute(
                    "INSERT INTO turns (session_id, sequence, id, status, source, created_at) VALUES ($1, 1, $2, $3, '{}', now())",
                    session,
                    turn_id,
                    turn,
                )
        return session, turn_id

    async def status(self, turn: str) -> str:
        async with self.database.connection() as connection:
            return await connection.fetchval("SELECT status FROM turns WHERE id = $1", turn)

    async def events(self, session: str) -> list[tuple[int, str]]:
        async with self.database.connection() as connection:
            rows = await connection.fetch("SELECT sequence, kind FROM events WHERE session_id = $1 ORDER BY sequence", session)
        return [(row["sequence"], row["kind"]) for row in rows]

    async def flush(self, batch: Batch, *, wait: bool = False, second: bool = False) -> dict[str, list[Flushed]]:
        return await (self.second if second else self.first).flush(batch, wait=wait, origin=None)


@asynccontextmanager
async def bench(dsn: str) -> AsyncIterator[Bench]:
    database = Database(dsn)
    await database.start()
    made = Bench(database)
    try:
        yield made
    finally:
        await made.first.close()
        await made.second.close()
        await database.stop()


def admit(session: str, **options: Any) -> Admit:
    defaults: dict[str, Any] = {
        "turn_id": new_id(), "input": b"[]", "source": b"{}", "principal_id": session, "by": "user", "key": None, "fingerprint": b""
    }  # fmt: skip
    return Admit(session_id=session, environment_id=session, **(defaults | options))


def settle(session: str, turn: str, status: Any = "completed", **options: Any) -> Settle:
    return Settle(session_id=session, turn_id=turn, status=status, **({"channel": 1, "op": 1} | options))


async def test_the_flush_permits_exactly_the_transitions_of_the_table(database):
    """From every status, under every mark, by every operation: what changes is in the table, and what the table says happens."""
    seen: set[tuple[str, str]] = set()
    async with bench(database) as b:
        for status, mark, said in itertools.product(STATUSES, MARKS, ("completed", "failed", "stopped")):
            if mark is not None and status != "running":
                continue
            session, turn = await b.session(status, mark=mark)
            outcome = (await b.flush(Batch(settles=[settle(session, turn, said)])))["settle"][0]
            after = await b.status(turn)
            if status == "running":
                assert outcome.outcome == "ok"
                assert after == settled_status(mark, said), (mark, said)  # type: ignore[arg-type]
                cause = ("completed" if said == "completed" else "failed") if mark is None else DRAINED[mark]  # type: ignore[index]
                assert TRANSITIONS["running", cause] == after  # type: ignore[index]
            else:
                assert (outcome.outcome, after) == ("stale", status)
            seen.add((status, after))
        for status in STATUSES:
            session, turn = await b.session(status)
            await b.flush(Batch(claims=[Claim(session_id=session)]))
            after = await b.status(turn)
            assert after == ("running" if status == "queued" else status)
            seen.add((status, after))
            await b.flush(Batch(appends=[Append(session_id=session, channel=1, op=1, turn_id=turn, data=b"[]")]))
            await b.flush(Batch(admits=[admit(session)]))
            assert await b.status(turn) == after
    changed = {(before, after) for before, after in seen if before != after}
    assert changed <= {(before, after) for (before, _), after in TRANSITIONS.items()}


@pytest.mark.parametrize(
    ("columns", "turn"),
    [({"held": 1}, "queued"), ({"process": "none"}, "queued"), ({"process": "starting"}, "queued"), ({"process": "ending"}, "queued")],
)
async def test_nothing_is_claimed_while_held_or_without_a_ready_process(database, columns, turn):
    """[S8], [S17]."""
    async with bench(database) as b:
        session, turn_id = await b.session(turn, **columns)
        assert (await b.flush(Batch(claims=[Claim(session_id=session)])))["claim"][0].outcome == "stale"
        admitted = (await b.flush(Batch(admits=[admit(session)])))["admit"][0]
        assert (admitted.outcome, admitted.status) == ("ok", "queued")
        assert await b.status(turn_id) == "queued"


async def test_a_settlement_with_open_messages_is_put_off_and_changes_nothing(database):
    """[E2]."""
    async with bench(database) as b:
        session, turn = await b.session("running", loose=1)
        assert (await b.flush(Batch(settles=[settle(session, turn)])))["settle"][0].outcome == "loose"
        assert await b.status(turn) == "running" and await b.events(session) == []


@pytest.mark.parametrize(("channel", "op"), [(2, 5), (1, 0)])
async def test_frames_of_another_epoch_or_an_old_operation_are_stale(database, channel, op):
    """I4."""
    async with bench(database) as b:
        session, turn = await b.session("running")
        batch = Batch(
            appends=[Append(session_id=session, channel=channel, op=op, turn_id=turn, data=b"[]")],
            settles=[settle(session, turn, channel=channel, op=op)],
        )
        found = await b.flush(batch)
        assert [found["append"][0].outcome, found["settle"][0].outcome] == ["stale", "stale"]
        assert await b.status(turn) == "running"


async def test_one_items_refusal_fails_no_neighbour_and_numbers_stay_gapless(database):
    """DESIGN 7, I2: outputs, settlement, admission and their claims in one batch."""
    async with bench(database) as b:
        session, turn = await b.session("running")
        other, settled = await b.session("completed")
        appends = [Append(session_id=session, channel=1, op=op, turn_id=turn, data=b"[]") for op in (1, 2, 3)]
        appends.insert(1, Append(session_id=other, channel=1, op=9, turn_id=settled, data=b"[]"))
        found = await b.flush(
            Batch(
                appends=appends,
                settles=[settle(session, turn, op=4)],
                admits=[admit(session), admit(new_id()), admit(session)],
            ),
            wait=True,
        )
        assert [row.outcome for row in found["append"]] == ["ok", "stale", "ok", "ok"]
        assert [row.outcome for row in found["admit"]] == ["ok", "missing", "ok"]
        assert [row.status for row in found["admit"]] == ["running", None, "queued"]
        kinds = await b.events(session)
        assert [sequence for sequence, _ in kinds] == list(range(1, len(kinds) + 1))
        assert [kind for _, kind in kinds] == [
            "turn.output", "turn.output", "turn.output", "turn.completed", "turn.queued", "turn.running", "turn.queued"
        ]  # fmt: skip


@pytest.mark.parametrize("operation", ["admit", "settle", "claim"])
async def test_a_hold_that_commits_while_an_operation_waits_for_the_lock_is_seen(database, operation):
    """[S17], DESIGN 7: lock first, then decide. Without it a Turn started although the hold was there."""
    async with bench(database) as b:
        for _ in range(25):
            session, turn = await b.session({"admit": None, "settle": "running", "claim": "queued"}[operation])
            if operation == "settle":
                assert (await b.flush(Batch(admits=[admit(session)])))["admit"][0].status == "queued"
            batch = {
                "admit": Batch(admits=[admit(session)]),
                "settle": Batch(settles=[settle(session, turn)]),
                "claim": Batch(claims=[Claim(session_id=session)]),
            }[operation]
            async with b.database.connection() as holder:
                transaction = holder.transaction()
                await transaction.start()
                await holder.execute("UPDATE sessions SET held = 1 WHERE id = $1", session)
                waiting = asyncio.create_task(b.flush(batch, wait=True))
                await _blocked(b, holder)
                await transaction.commit()
            outcome = (await waiting)[operation][0]
            assert outcome.next_turn is None, "a Turn was started under a hold"
            async with b.database.connection() as connection:
                running = await connection.fetchval("SELECT running_turn FROM sessions WHERE id = $1", session)
            assert running is None


async def test_a_mark_that_commits_while_a_settlement_waits_decides_it(database):
    """[S11]: from the mark's commit the Turn can't complete."""
    async with bench(database) as b:
        session, turn = await b.session("running")
        async with b.database.connection() as marker:
            transaction = marker.transaction()
            await transaction.start()
            await marker.execute("UPDATE sessions SET stop_cause = 'turn_interrupted', stop_at = now() WHERE id = $1", session)
            waiting = asyncio.create_task(b.flush(Batch(settles=[settle(session, turn, result=b"1")]), wait=True))
            await _blocked(b, marker)
            await transaction.commit()
        assert (await waiting)["settle"][0].status == "interrupted"
        async with b.database.connection() as connection:
            row = await connection.fetchrow("SELECT status, result FROM turns WHERE id = $1", turn)
        assert tuple(row) == ("interrupted", None)


async def test_without_waiting_a_busy_session_is_skipped_and_the_others_go_on(database):
    """DESIGN 7: SKIP LOCKED."""
    async with bench(database) as b:
        busy, free = (await b.session())[0], (await b.session())[0]
        async with b.database.connection() as holder, holder.transaction():
            await holder.execute("UPDATE sessions SET agent = agent WHERE id = $1", busy)
            found = await b.flush(Batch(admits=[admit(busy), admit(free)]))
        assert [row.outcome for row in found["admit"]] == ["busy", "ok"]


async def test_overlapping_batches_of_two_control_planes_never_fail_and_agree_on_retries(database):
    """DESIGN 7: the same keys from two connections; one admits, the other replays."""
    async with bench(database) as b:
        sessions = [(await b.session())[0] for _ in range(20)]
        for round_ in range(20):
            batches = [[admit(s, key=f"k{round_}", fingerprint=b"same") for s in order] for order in (sessions, sessions[::-1])]
            left, right = await asyncio.gather(
                b.flush(Batch(admits=batches[0]), wait=True), b.flush(Batch(admits=batches[1]), wait=True, second=True)
            )
            outcomes = [{left["admit"][n].outcome, right["admit"][19 - n].outcome} for n in range(20)]
            assert outcomes == [{"ok", "replay"}] * 20
        assert b.database.deadlocks == 0


async def _blocked(b: Bench, holder: Any) -> None:
    """Return once a backend waits for a lock that `holder`'s transaction has."""
    pid = await holder.fetchval("SELECT pg_backend_pid()")
    async with b.database.connection() as watcher, asyncio.timeout(5):
        while not await watcher.fetchval("SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", pid):
            await asyncio.sleep(0.001)  # the database tells nobody that somebody waits
