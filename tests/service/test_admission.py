"""Admission buckets: who takes a token, who takes none, and that no number of control planes gives out more than there are.

SPEC [S5], [S4]; DESIGN I3. Time is the database's; tests let it pass by moving the bucket's last filling back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.scripted import House, deploy, house, manifest
from tests.service.test_flush import admit, bench

from helmr.control.listener import Listener, ListenerConfig
from helmr.control.service.limits import AdmissionLimit, EnvironmentLimits, Limits
from helmr.control.service.plane import ControlPlane
from helmr.control.service.principals import ensure_environment, session_principal
from helmr.control.store.creation import create
from helmr.control.store.flush import Batch
from helmr.environment_limits import limits_from
from helmr.objects.folder import FolderStore
from helmr.protocol.errors import (
    AdmissionUnavailable,
    ConfigurationMissing,
    IdempotencyConflict,
    InputEmpty,
    InvalidValue,
    MessageClosed,
    SessionKeyConflict,
    SessionNotOpen,
)
from helmr.protocol.ids import new_id
from helmr.server import Server, ServerConfig

pytestmark = pytest.mark.anyio

SLOW = 1e-6
"""Tokens a second: none comes within a test."""


async def limit(h: House, rate: float, burst: int) -> None:
    limits = EnvironmentLimits(admission=AdmissionLimit(rate=rate, burst=burst))
    await Limits(h.database).set(h.principal.environment_id, limits)


async def pass_time(h: House, seconds: float) -> None:
    """Let the bucket believe that so much more time has passed since it was filled."""
    async with h.database.connection() as connection:
        await connection.execute("UPDATE admission_buckets SET filled_at = filled_at - $1 * interval '1 second'", seconds)


async def level(h: House) -> float:
    """The stored level, as of the last filling."""
    async with h.database.connection() as connection:
        return await connection.fetchval("SELECT tokens FROM admission_buckets")


async def count(h: House, table: str) -> int:
    async with h.database.connection() as connection:
        return await connection.fetchval(f"SELECT count(*) FROM {table}")


async def test_an_environment_without_a_bucket_admits_without_limit(database, tmp_path):
    """[S5]: unlimited when not configured."""
    async with house(database, tmp_path) as h:
        made = await h.create(None)
        receipts = await asyncio.gather(*[h.enqueue(made["session"]["id"]) for _ in range(200)])
        assert sorted(r["sequence"] for r in receipts) == list(range(1, 201))
        assert (await Limits(h.database).get(h.principal.environment_id)).admission is None


async def test_a_creation_takes_one_token_with_or_without_input_and_each_enqueue_one(database, tmp_path):
    """[S5]."""
    async with house(database, tmp_path) as h:
        await limit(h, SLOW, 4)
        empty = (await h.create(None))["session"]["id"]
        assert await level(h) == pytest.approx(3, abs=0.01)
        await h.create("with input")
        assert await level(h) == pytest.approx(2, abs=0.01)
        await h.enqueue(empty)
        await h.enqueue(empty)
        for refused in (h.enqueue(empty), h.create(None), h.create("x")):
            with pytest.raises(AdmissionUnavailable):
                await refused


async def test_a_shortage_stores_nothing_and_says_when_to_come_back(database, tmp_path):
    """[S5]: 429 `admission_unavailable`; after the seconds that it names the same request is admitted."""
    async with house(database, tmp_path) as h:
        await limit(h, 0.5, 1)
        session = (await h.create(None))["session"]["id"]
        before = [await count(h, table) for table in ("sessions", "turns", "events", "idempotency")]
        for attempt in (lambda: h.enqueue(session, key="k"), lambda: h.create(None, key="new", idempotency_key="c")):
            with pytest.raises(AdmissionUnavailable) as refused:
                await attempt()
            assert refused.value.status == 429
            wait = refused.value.facts["retry_after"]
            assert 0 < wait <= 2
        assert [await count(h, table) for table in ("sessions", "turns", "events", "idempotency")] == before
        await pass_time(h, wait)
        assert (await h.enqueue(session, key="k"))["sequence"] == 1
        await pass_time(h, 2)
        assert (await h.create(None, key="new", idempotency_key="c"))["turn"] is None


async def test_exact_retries_are_answered_while_the_bucket_is_empty(database, tmp_path):
    """[S4], [S5]: looked up before any other check; a conflict is a conflict, not a shortage."""
    async with house(database, tmp_path) as h:
        await limit(h, SLOW, 2)
        made = await h.create("x", idempotency_key="c")
        session = made["session"]["id"]
        first = await h.enqueue(session, "a", key="k")
        with pytest.raises(AdmissionUnavailable):
            await h.enqueue(session, "b", key="other")
        assert await h.create("x", idempotency_key="c") == made
        assert await h.enqueue(session, "a", key="k") == first
        with pytest.raises(IdempotencyConflict):
            await h.enqueue(session, "b", key="k")
        with pytest.raises(IdempotencyConflict):
            await h.create("y", idempotency_key="c")


async def test_refusals_messages_controls_and_retries_take_no_token(database, tmp_path):
    """[S5], row by row."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        closed = (await h.create(None, key="taken"))["session"]["id"]
        await h.plane.controls.close(h.principal, closed, None)
        await limit(h, SLOW, 10)
        turn = (await h.enqueue(session, "a", key="k"))["id"]
        await h.create("made", idempotency_key="c")
        assert await level(h) == pytest.approx(8, abs=0.01)

        await h.enqueue(session, "a", key="k")
        await h.create("made", idempotency_key="c")
        with pytest.raises(IdempotencyConflict):
            await h.enqueue(session, "b", key="k")
        with pytest.raises(SessionNotOpen):
            await h.enqueue(closed)
        with pytest.raises(SessionKeyConflict):
            await h.create("x", key="taken")
        with pytest.raises(InputEmpty):
            await h.plane.sessions.create(h.principal, agent="talker", input=[])

        await process.began(turn)
        with pytest.raises(MessageClosed):
            await h.plane.turns.send(h.principal, session, turn, [{"type": "text", "text": "hi"}], None)
        process.say("messages.open", turn=turn)
        await process.acknowledged(process.op)
        await h.plane.turns.send(h.principal, session, turn, [{"type": "text", "text": "hi"}], None)
        await h.plane.turns.interrupt(h.principal, session, turn, None)
        hold = await h.plane.controls.interrupt(h.principal, session, None)
        await h.plane.controls.resume(h.principal, session, _member(hold.body, "hold_id"), None)
        await h.plane.controls.close(h.principal, session, None)
        await h.plane.controls.cancel(h.principal, session, None)
        assert await level(h) == pytest.approx(8, abs=0.01)


async def test_a_batch_admits_exactly_what_there_are_tokens_for_in_the_order_of_arrival(database):
    """[S5]: 10 enqueues and 3 tokens; of the others each is refused by itself and told when its own token comes."""
    async with bench(database) as b:
        environment = await _environment(b, rate=2.0, burst=3)
        sessions = [(await b.session())[0] for _ in range(3)]
        unlimited = (await b.session())[0]
        async with b.database.connection() as connection:
            await connection.execute("UPDATE sessions SET environment_id = $1 WHERE id = ANY ($2::uuid[])", environment, sessions)
        items = [dataclasses.replace(admit(sessions[n % 3]), environment_id=environment) for n in range(10)]
        found = (await b.flush(Batch(admits=[*items[:2], admit(unlimited), *items[2:]])))["admit"]
        assert found.pop(2).outcome == "ok"
        assert [item.outcome for item in found] == ["ok"] * 3 + ["short"] * 7
        waits = [float(item.hint or "nan") for item in found[3:]]
        assert waits == pytest.approx([n * 0.5 for n in range(1, 8)])
        assert await b.events(sessions[0]) == [(1, "turn.queued"), (2, "turn.running")]
        async with b.database.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM turns") == 4


async def test_a_batch_of_creations_takes_tokens_in_the_order_of_arrival_and_none_for_taken_keys(database, tmp_path):
    """[S3], [S5]: the second of two new ones with one key needs no token; one whose first found none is short, not in conflict."""
    async with house(database, tmp_path) as h:
        taken = await h.create(None, key="old")
        await limit(h, 1.0, 2)
        template = await _creation(h)
        keys = ["old", "a", "a", None, "b", "b", None]
        items = [_with_key(template, key) for key in keys]
        found = await create(h.database, items, None)
        assert [c.outcome for c in found] == ["key_taken", "ok", "key_taken", "ok", "short", "short", "short"]
        assert found[0].occupant == taken["session"]["id"]
        assert found[2].occupant == items[1].session_id
        assert [float(c.data or b"nan") for c in found[4:]] == pytest.approx([1, 1, 2])
        assert await count(h, "sessions") == 3


async def test_a_bucket_that_somebody_draws_from_makes_an_admission_wait_for_the_next_batch_only(database, tmp_path):
    """DESIGN 7, [S5]: outputs and settlements of the batch go on; the admission comes when the bucket is free, and takes its token."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        other, second = await h.warm()
        turn = (await h.enqueue(other))["id"]
        await second.began(turn)
        await limit(h, SLOW, 1)
        async with h.database.connection() as holder:
            transaction = holder.transaction()
            await transaction.start()
            await holder.execute("SELECT FROM admission_buckets FOR UPDATE")
            flushes = h.plane._batcher.flushes
            waiting = asyncio.create_task(h.enqueue(session))
            await _until(lambda: h.plane._batcher.flushes >= flushes + 3)
            assert not waiting.done()
            await transaction.commit()
        second.settle(turn)
        assert (await h.turn(other, turn))["status"] == "completed"
        assert (await waiting)["sequence"] == 2
        assert process.session_id == session
        with pytest.raises(AdmissionUnavailable):
            await h.enqueue(session)


async def test_a_limit_that_is_set_again_fills_nothing_and_a_smaller_one_keeps_what_fits(database, tmp_path):
    """[S5]: a control plane that starts with the same limit gives nobody a second burst."""
    async with house(database, tmp_path) as h:
        environment = h.principal.environment_id
        await limit(h, SLOW, 5)
        session = (await h.create(None))["session"]["id"]
        await limit(h, SLOW, 5)
        assert await level(h) == pytest.approx(4, abs=0.01)
        await limit(h, SLOW, 2)
        assert await level(h) == pytest.approx(2, abs=0.01)
        await limit(h, SLOW, 50)
        assert await level(h) == pytest.approx(2, abs=0.01)
        assert (await Limits(h.database).get(environment)).admission == AdmissionLimit(rate=SLOW, burst=50)
        await Limits(h.database).set(environment, EnvironmentLimits(admission=None))
        await asyncio.gather(*[h.enqueue(session) for _ in range(10)])


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (float("nan"), 1), (float("inf"), 1), (1, 0), (1, -3), (1, 10**7)])
def test_a_limit_that_makes_no_sense_is_refused(rate, burst):
    with pytest.raises(InvalidValue):
        AdmissionLimit(rate=rate, burst=burst)


def _member(body: bytes, name: str) -> Any:
    return json.loads(body)[name]


async def _environment(b: Any, *, rate: float, burst: int) -> str:
    """An Environment of hand-made rows, with a bucket."""
    async with b.database.connection() as connection:
        environment = await ensure_environment(connection, "limited", "main")
    await Limits(b.database).set(environment, EnvironmentLimits(admission=AdmissionLimit(rate=rate, burst=burst)))
    return environment


async def _creation(h: House) -> Any:
    """What a creation without input and key looks like to the store."""
    seen: list[Any] = []
    submit = h.plane._creations.submit

    async def spy(item: Any) -> Any:
        seen.append(item)
        raise InputEmpty("only looked at")

    h.plane._creations.submit = spy  # type: ignore[method-assign]
    with pytest.raises(InputEmpty):
        await h.create(None)
    h.plane._creations.submit = submit  # type: ignore[method-assign]
    return seen[0]


def _with_key(creation: Any, key: str | None) -> Any:
    return dataclasses.replace(creation, session_id=new_id(), key=key)


async def _until(true: Any) -> None:
    """Give way to the event loop until it is so."""
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0)


async def test_a_spawned_and_a_started_session_take_one_token_each_and_a_refused_one_none(database, tmp_path):
    """[S5], [M4]: also what a Session asks for; a refusal after the token was taken gives it back."""
    async with house(database, tmp_path) as h:
        parent = (await h.create(None))["session"]["id"]
        await h.create(None, key="taken")
        asking = session_principal(parent, h.principal.environment_id)
        await limit(h, 0.5, 2)
        await h.plane.sessions.spawn(asking, agent="talker", idempotency_key="one")
        with pytest.raises(SessionKeyConflict):
            await h.plane.sessions.spawn(asking, agent="talker", key="taken")
        await h.plane.sessions.start(asking, agent="talker")
        with pytest.raises(AdmissionUnavailable) as refused:
            await h.plane.sessions.spawn(asking, agent="talker", idempotency_key="two")
        assert 0 < refused.value.facts["retry_after"] <= 2
        assert (await h.plane.sessions.spawn(asking, agent="talker", idempotency_key="one")).replayed
        await pass_time(h, refused.value.facts["retry_after"])
        await h.plane.sessions.spawn(asking, agent="talker", idempotency_key="two")


async def test_identical_refused_creations_at_once_are_refused_for_the_same_reason(database, tmp_path):
    """[S4]: only accepted requests are remembered, also within one batch; the second is no conflict with a request that never was."""
    async with house(database, tmp_path) as h:
        await h.create(None, key="taken")
        found = await asyncio.gather(*[h.create(None, key="taken", idempotency_key="c") for _ in range(6)], return_exceptions=True)
        assert {type(error) for error in found} == {SessionKeyConflict}


async def test_a_database_clock_that_goes_back_stops_no_bucket(database, tmp_path):
    """[S5], STYLE 8: after a failover to a server whose clock is an hour behind, a token comes when `Retry-After` says so."""
    async with house(database, tmp_path) as h:
        await limit(h, 0.5, 1)
        session = (await h.create(None))["session"]["id"]
        await pass_time(h, -3600)
        with pytest.raises(AdmissionUnavailable) as refused:
            await h.enqueue(session)
        assert 0 < refused.value.facts["retry_after"] <= 2
        await pass_time(h, refused.value.facts["retry_after"])
        await h.enqueue(session)


async def test_two_control_planes_give_out_one_burst(database, tmp_path):
    """[S5]: creations and enqueues of two control planes at once; together exactly the burst, without a deadlock (I3)."""
    async with house(database, tmp_path) as h:
        sessions = [(await h.create(None))["session"]["id"] for _ in range(4)]
        other = ControlPlane(h.database, FolderStore(tmp_path / "blobs"))
        await other.start()
        try:
            await limit(h, SLOW, 25)
            content = [{"type": "text", "text": "x"}]
            asked = [
                plane.turns.enqueue(h.principal, sessions[n % 4], content, None)
                if n % 3
                else plane.sessions.create(h.principal, agent="talker")
                for n in range(60)
                for plane in (h.plane, other)
            ]
            found = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            await other.stop()
        admitted = [reply for reply in found if not isinstance(reply, BaseException)]
        assert len(admitted) == 25
        assert {type(error) for error in found if isinstance(error, BaseException)} == {AdmissionUnavailable}
        assert await count(h, "turns") + await count(h, "sessions") - 4 == 25


@pytest.mark.parametrize("ways", [*itertools.combinations_with_replacement(("enqueue", "create", "spawn"), 2)], ids="-".join)
async def test_the_last_token_goes_to_one_of_two_that_ask_at_once_on_two_control_planes(database, tmp_path, ways):
    """[S5], I3: both wait for the bucket before they look into it; whoever comes second sees it empty."""
    async with house(database, tmp_path) as h:
        sessions = [(await h.create(None))["session"]["id"] for _ in range(2)]
        other = ControlPlane(h.database, FolderStore(tmp_path / "blobs"))
        await other.start()
        try:
            await limit(h, SLOW, 1)

            async def ask(plane: ControlPlane, way: str, session: str) -> Any:
                if way == "enqueue":
                    return await plane.turns.enqueue(h.principal, session, [{"type": "text", "text": "x"}], None)
                if way == "create":
                    return await plane.sessions.create(h.principal, agent="talker")
                return await plane.sessions.spawn(session_principal(session, h.principal.environment_id), agent="talker")

            async with h.database.connection() as holder, h.database.connection() as watcher:
                transaction = holder.transaction()
                await transaction.start()
                await holder.execute("SELECT FROM admission_buckets FOR UPDATE")
                asking = [
                    asyncio.create_task(ask(plane, way, session))
                    for plane, way, session in zip((h.plane, other), ways, sessions, strict=True)
                ]
                async with asyncio.timeout(5):
                    while await watcher.fetchval(_WAITING) < 2:
                        await asyncio.sleep(0.001)  # the database tells nobody that somebody waits
                await transaction.commit()
            found = await asyncio.gather(*asking, return_exceptions=True)
        finally:
            await other.stop()
        assert sorted(isinstance(outcome, AdmissionUnavailable) for outcome in found) == [False, True], found


_WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND cardinality(pg_blocking_pids(pid)) > 0"""

_STEP = st.tuples(st.sampled_from(["first", "second", "both"]), st.integers(1, 12), st.sampled_from([0.0, 0.0, 0.001, 0.01]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rate=st.sampled_from([0.5, 7.0, 100.0, 2000.0]), burst=st.integers(1, 20), steps=st.lists(_STEP, min_size=1, max_size=12))
def test_over_any_time_no_more_is_admitted_than_the_rate_and_the_burst_allow(database, rate, burst, steps):
    """[S5]: two control planes, any interleaving, by the database's clock, against a model of a bucket that is one number."""
    asyncio.run(_play(database, rate, burst, steps))


async def _play(dsn: str, rate: float, burst: int, steps: list[tuple[str, int, float]]) -> None:
    async with bench(dsn) as b:
        environment = await _environment(b, rate=rate, burst=burst)
        sessions = [(await b.session())[0] for _ in range(2)]
        async with b.database.connection() as connection:
            await connection.execute("UPDATE sessions SET environment_id = $1 WHERE id = ANY ($2::uuid[])", environment, sessions)
            began: datetime = await connection.fetchval(
                "UPDATE admission_buckets SET tokens = burst, filled_at = clock_timestamp() WHERE environment_id = $1 RETURNING filled_at",
                environment,
            )
        asked: list[tuple[datetime, int, int]] = []
        for who, count_, pause in steps:
            await asyncio.sleep(pause)
            planes = {"first": (0,), "second": (1,), "both": (0, 1)}[who]
            batches = [[dataclasses.replace(admit(sessions[n]), environment_id=environment) for _ in range(count_)] for n in planes]
            found = await asyncio.gather(
                *[b.flush(Batch(admits=items), wait=True, second=n == 1) for n, items in zip(planes, batches, strict=True)]
            )
            for outcome in found:
                rows = outcome["admit"]
                granted = [row.outcome for row in rows].count("ok")
                assert [row.outcome for row in rows] == ["ok"] * granted + ["short"] * (count_ - granted)
                asked.append((rows[0].at, count_, granted))
        model, then = float(burst), began
        asked.sort(key=lambda entry: entry[0])
        for at, wanted, granted in asked:
            model, then = min(burst, model + rate * max(0.0, (at - then).total_seconds())), max(at, then)
            assert min(wanted, math.floor(model - 1e-6)) <= granted <= min(wanted, math.floor(model + 1e-6)), (asked, rate, burst)
            model -= granted
        for first in range(len(asked)):
            total = 0
            for at, _, granted in asked[first:]:
                total += granted
                assert total <= burst + rate * (at - asked[first][0]).total_seconds() + 1e-6


async def test_a_refused_client_reads_when_to_come_back_and_a_restart_fills_nothing(database: str, tmp_path: Path):
    """SPEC 11, [S5]: 429, `Retry-After` in whole seconds rounded up; the limit is set at the start, and set once."""
    key = "hlmr_sk_" + "k" * 43
    limits = limits_from({"HELMR_ADMISSION_RATE": "0.001", "HELMR_ADMISSION_BURST": "2"})
    config = ServerConfig(dsn=database, blobs=tmp_path, api_key=key, pool_size=4, limits=limits)
    statuses = []
    for start in range(2):
        server = Server(config, Listener(ListenerConfig()))
        try:
            await server.start()
            if start == 0:
                async with server.plane.database.connection() as connection:
                    environment = await ensure_environment(connection, "default", "main")
                await deploy(server.plane.database, environment, manifest())
            async with aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {key}"}) as client:
                for _ in range(2):
                    async with client.post("/v1/sessions", json={"agent": "talker"}) as answer:
                        statuses.append(answer.status)
                        if answer.status == 429:
                            problem = await answer.json()
                            assert (problem["code"], problem["retryable"]) == ("admission_unavailable", True)
                            assert int(answer.headers["Retry-After"]) == math.ceil(problem["retry_after"]) <= 1000
        finally:
            await server.stop()
    assert statuses == [201, 201, 429, 429]


def test_the_limits_come_from_the_environment():
    """[S5], [S22]: what is not said stays as it is."""
    assert limits_from({}) == EnvironmentLimits()
    assert limits_from({"HELMR_ADMISSION_RATE": "2.5"}).admission == AdmissionLimit(rate=2.5, burst=3)
    assert limits_from({"HELMR_ADMISSION_RATE": "0.1"}).admission == AdmissionLimit(rate=0.1, burst=1)
    assert limits_from({"HELMR_ADMISSION_RATE": "unlimited", "HELMR_PAYLOAD_RETENTION": "never"}) == EnvironmentLimits(
        admission=None, payload_retention_ms=None
    )
    assert limits_from({"HELMR_PAYLOAD_RETENTION": "30d"}).payload_retention_ms == 30 * 86_400_000
    assert limits_from({"HELMR_COMPUTER_RETENTION": "never"}) == EnvironmentLimits(computer_retention_ms=None)
    assert limits_from({"HELMR_TRIGGER_GRACE": "2h", "HELMR_TRIGGER_COMPUTER_RETENTION": "never"}) == EnvironmentLimits(
        trigger_grace_ms=2 * 3_600_000, trigger_computer_retention_ms=None
    )
    assert limits_from({"HELMR_COMPUTER_RETENTION": "12h"}).computer_retention_ms == 12 * 3_600_000


@pytest.mark.parametrize(("rate", "burst"), [("nan", ""), ("inf", ""), ("many", ""), ("-5", ""), ("5", "1.5"), ("5", "0"), ("1e9", "")])
def test_variables_that_make_no_limit_are_refused_by_name(rate, burst):
    """[S3]: whoever starts a server with them reads which is wrong."""
    with pytest.raises(ConfigurationMissing) as refused:
        limits_from({"HELMR_ADMISSION_RATE": rate, "HELMR_ADMISSION_BURST": burst})
    text = str(refused.value)
    assert text.startswith("HELMR_ADMISSION_RATE must be a number over 0") and "invalid_value" not in text
