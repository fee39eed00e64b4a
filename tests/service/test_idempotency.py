"""Exact retries, every write against every way that a key can be used again. SPEC [S4], [S5]; UD-89, UD-91.

Each write is an `Operation`: how to bring a Session to where it is accepted, how to ask for it (with the first body or another one), and
what refuses it before that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.races.planes import beside
from tests.service.scripted import House, Process, agent, deploy, house, manifest

from helmr.control.service.limits import AdmissionLimit, EnvironmentLimits, Limits
from helmr.control.service.plane import ControlPlane
from helmr.control.service.principals import PERMISSIONS, Principal, session_principal
from helmr.control.service.reply import Reply
from helmr.protocol import errors, jsontext
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


def words(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


@dataclass(kw_only=True)
class Stage:
    """What a write acts on."""

    session: str
    process: Process
    turn: str = ""
    holds: list[str] = field(default_factory=list)
    question: str = ""


Ask = Callable[[ControlPlane, Principal, Stage, str, str], Awaitable[Reply]]
"""Ask for it: with a key, and with the body called `first` or `other`."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    name: str
    permission: str
    ask: Ask
    stage: Callable[[House], Awaitable[Stage]]
    bodies: bool = True
    """Whether requests can differ by more than their target."""
    by_session: bool = False

    def __str__(self) -> str:
        return self.name


async def idle(h: House) -> Stage:
    """A Session with a process that waits; other Sessions may get theirs meanwhile."""
    made = await h.create("warm up")
    session, turn = made["session"]["id"], made["turn"]["id"]
    while (process := await h.host.next_process()).session_id != session:
        pass
    await process.began(turn)
    process.settle(turn)
    assert (await h.turn(session, turn))["status"] == "completed"
    return Stage(session=session, process=process)


async def working(h: House) -> Stage:
    """A Turn runs, takes messages and asks."""
    s = await idle(h)
    s.turn = (await h.enqueue(s.session))["id"]
    await s.process.began(s.turn)
    s.process.say("messages.open", turn=s.turn)
    s.process.say("question.ask", turn=s.turn, question={"prompt": words("which?"), "answer": {"type": "text"}})
    s.question = (await h.until(s.session, "question.asked"))["data"]["question_id"]
    return s


async def held(h: House) -> Stage:
    s = await idle(h)
    for _ in range(2):
        s.holds.append(json.loads((await h.plane.controls.interrupt(h.principal, s.session, None)).body)["hold_id"])
    return s


async def closed(h: House) -> Stage:
    s = await idle(h)
    await h.plane.controls.cancel(h.principal, s.session, None)
    return s


def _create(plane: ControlPlane, who: Principal, s: Stage, key: str, body: str) -> Awaitable[Reply]:
    return plane.sessions.create(who, agent="talker", input=words(body), labels={"a": "b"}, idempotency_key=key)


def _enqueue(plane: ControlPlane, who: Principal, s: Stage, key: str, body: str) -> Awaitable[Reply]:
    return plane.turns.enqueue(who, s.session, words(body), key)


def _send(plane: ControlPlane, who: Principal, s: Stage, key: str, body: str) -> Awaitable[Reply]:
    return plane.turns.send(who, s.session, s.turn, words(body), key)


def _respond(plane: ControlPlane, who: Principal, s: Stage, key: str, body: str) -> Awaitable[Reply]:
    return plane.questions.respond(who, s.session, s.turn, s.question, {"type": "text", "text": body}, "r1", key)


def _resume(plane: ControlPlane, who: Principal, s: Stage, key: str, body: str) -> Awaitable[Reply]:
    return plane.controls.resume(who, s.session, s.holds[body != "first"], key)


def _spawn(plane: ControlPlane, who: Principal, s: Stage, key: str, body: str) -> Awaitable[Reply]:
    return plane.sessions.spawn(who, agent="talker", input=words(body), idempotency_key=key)


def _start(plane: ControlPlane, who: Principal, s: Stage, key: str, body: str) -> Awaitable[Reply]:
    return plane.sessions.start(who, agent="talker", input=words(body), idempotency_key=key)


OPERATIONS = (
    Operation(name="create", permission="sessions.create", ask=_create, stage=idle),
    Operation(name="enqueue", permission="sessions.send", ask=_enqueue, stage=idle),
    Operation(name="send", permission="sessions.send", ask=_send, stage=working),
    Operation(name="respond", permission="questions.respond", ask=_respond, stage=working),
    Operation(
        name="interrupt_turn",
        permission="sessions.interrupt",
        ask=lambda plane, who, s, key, _: plane.turns.interrupt(who, s.session, s.turn, key),
        stage=working,
        bodies=False,
    ),
    Operation(
        name="interrupt_session",
        permission="sessions.interrupt",
        ask=lambda plane, who, s, key, _: plane.controls.interrupt(who, s.session, key),
        stage=working,
        bodies=False,
    ),
    Operation(name="resume", permission="sessions.resume", ask=_resume, stage=held),
    Operation(
        name="close",
        permission="sessions.close",
        ask=lambda plane, who, s, key, _: plane.controls.close(who, s.session, key),
        stage=working,
        bodies=False,
    ),
    Operation(
        name="cancel",
        permission="sessions.cancel",
        ask=lambda plane, who, s, key, _: plane.controls.cancel(who, s.session, key),
        stage=working,
        bodies=False,
    ),
    Operation(
        name="delete_data",
        permission="sessions.cancel",
        ask=lambda plane, who, s, key, _: plane.retention.delete_data(who, s.session, key),
        stage=closed,
        bodies=False,
    ),
    Operation(name="spawn", permission="sessions.create", ask=_spawn, stage=idle, by_session=True),
    Operation(name="start", permission="sessions.create", ask=_start, stage=idle, by_session=True),
)

every_write = pytest.mark.parametrize("operation", OPERATIONS, ids=str)


def asker(h: House, operation: Operation, s: Stage) -> Principal:
    """Who asks: the tester, or the Session itself where Sessions ask."""
    return session_principal(s.session, h.principal.environment_id) if operation.by_session else h.principal


_EFFECTS = """
SELECT 'sessions', count(*), '' FROM sessions UNION ALL SELECT 'turns', count(*), '' FROM turns
UNION ALL SELECT 'messages', count(*), '' FROM messages UNION ALL SELECT 'holds', count(*), count(released_at)::text FROM holds
UNION ALL SELECT 'answers', count(*), max(response_id) FROM questions WHERE status = 'responded'
UNION ALL SELECT 'receipts', count(*), md5(string_agg(md5(receipt) || md5(fingerprint), '' ORDER BY operation, target, key))
    FROM idempotency
UNION ALL SELECT kind, count(*), '' FROM events
    WHERE kind ~ '^(turn.queued|turn.stopping|message.admitted|question.responded|session.(interrupt|resume|close|cancel|held|closed))$'
    GROUP BY kind
UNION ALL SELECT 'expired', count(*), max(payload_expired_at)::text FROM sessions WHERE payload_expired_at IS NOT NULL
ORDER BY 1"""


async def effects(h: House) -> list[tuple[Any, ...]]:
    """All that writes leave behind; not what processes do by themselves."""
    async with h.database.connection() as connection:
        return [tuple(row) for row in await connection.fetch(_EFFECTS)]


@every_write
@pytest.mark.ud("UD-89")
async def test_an_exact_retry_gives_the_original_receipt_and_no_second_effect(database, tmp_path, operation):
    """[S4]: at once, and after the Session ended and the current Deployment lost the Agent."""
    async with house(database, tmp_path) as h:
        s = await operation.stage(h)
        who = asker(h, operation, s)
        first = await operation.ask(h.plane, who, s, "k", "first")
        assert not first.replayed
        after = await effects(h)
        for _ in range(2):
            assert await operation.ask(h.plane, who, s, "k", "first") == Reply(first.body, replayed=True)
        assert await effects(h) == after
        await h.plane.controls.cancel(h.principal, s.session, None)
        await deploy(h.database, h.principal.environment_id, manifest(agent("somebody-else"), bundle="2" * 64))
        after = await effects(h)
        assert await operation.ask(h.plane, who, s, "k", "first") == Reply(first.body, replayed=True)
        assert await effects(h) == after


@pytest.mark.parametrize("operation", [operation for operation in OPERATIONS if operation.bodies], ids=str)
@pytest.mark.ud("UD-89")
async def test_a_used_key_with_another_body_conflicts_and_changes_nothing(database, tmp_path, operation):
    """[S4]: 409 `idempotency_conflict`, also once the Session is closed; the first request can still be repeated."""
    async with house(database, tmp_path) as h:
        s = await operation.stage(h)
        who = asker(h, operation, s)
        first = await operation.ask(h.plane, who, s, "k", "first")
        after = await effects(h)
        with pytest.raises(errors.IdempotencyConflict):
            await operation.ask(h.plane, who, s, "k", "other")
        assert await effects(h) == after
        await h.plane.controls.cancel(h.principal, s.session, None)
        with pytest.raises(errors.IdempotencyConflict):
            await operation.ask(h.plane, who, s, "k", "other")
        assert (await operation.ask(h.plane, who, s, "k", "first")).body == first.body


@every_write
@pytest.mark.ud("UD-89")
async def test_the_same_key_of_another_principal_or_for_another_target_is_another_key(database, tmp_path, operation):
    """[S4]: judged anew, by what the state says now."""
    async with house(database, tmp_path) as h:
        s = await operation.stage(h)
        who = asker(h, operation, s)
        first = await operation.ask(h.plane, who, s, "k", "first")
        for body in ("first", "other"):
            stranger = dataclasses.replace(h.principal, id=new_id())
            if operation.by_session:
                another = await operation.stage(h)
                stranger = asker(h, operation, another)
            try:
                reply = await operation.ask(h.plane, stranger, s, "k", body)
            except errors.HelmrError as refused:
                state = (errors.TurnStopping, errors.MessageClosed, errors.HoldNotFound, errors.QuestionAlreadyResponded)
                assert isinstance(refused, state), refused
            else:
                # The same answer to the same question is the same receipt by its `response_id` [Q3], whoever's key it came with.
                assert not reply.replayed or operation.name == "respond"
        if operation.name not in ("create", "spawn", "start"):
            elsewhere = await operation.stage(h)
            reply = await operation.ask(h.plane, who, elsewhere, "k", "first")
            assert not reply.replayed
            assert reply.body != first.body


async def test_one_key_serves_every_operation_once(database, tmp_path):
    """[S4]: the operation is part of the identity."""
    async with house(database, tmp_path) as h:
        s = await working(h)
        hold = h.plane.controls.interrupt
        replies = []
        for operation in OPERATIONS:
            if operation.name == "interrupt_turn":
                replies.append(await operation.ask(h.plane, h.principal, s, "k", "first"))
                s.holds.append(json.loads((await hold(h.principal, s.session, "another")).body)["hold_id"])
            elif operation.name == "delete_data":
                s.process.die("exited")
                await h.until(s.session, "session.process_stopped")
                replies.append(await operation.ask(h.plane, h.principal, s, "k", "first"))
            elif not operation.by_session:
                replies.append(await operation.ask(h.plane, h.principal, s, "k", "first"))
        assert len(replies) == 10 and not any(reply.replayed for reply in replies)


@every_write
async def test_authority_is_checked_anew_before_a_receipt_is_given(database, tmp_path, operation):
    """[S4]: 403 for a key that lost the permission; and given back, the receipt is still there."""
    async with house(database, tmp_path) as h:
        s = await operation.stage(h)
        who = asker(h, operation, s)
        first = await operation.ask(h.plane, who, s, "k", "first")
        weaker = dataclasses.replace(who, permissions=frozenset(PERMISSIONS) - {operation.permission})
        with pytest.raises(errors.Forbidden):
            await operation.ask(h.plane, weaker, s, "k", "first")
        if not operation.by_session:  # the Environment of a Session is its own
            with pytest.raises(errors.HelmrError):
                await operation.ask(h.plane, dataclasses.replace(who, environment_id=new_id()), s, "k", "first")
        assert await operation.ask(h.plane, who, s, "k", "first") == Reply(first.body, replayed=True)


@every_write
@pytest.mark.ud("UD-91")
async def test_a_refused_request_is_not_remembered(database, tmp_path, operation):
    """[S4]: invalid or forbidden, then mended: the same key serves, whatever the body was before."""
    async with house(database, tmp_path) as h:
        s = await operation.stage(h)
        who = asker(h, operation, s)
        weaker = dataclasses.replace(who, permissions=frozenset())
        nowhere = dataclasses.replace(s, session=new_id(), turn=new_id(), question=new_id(), holds=[new_id(), new_id()])
        before = await effects(h)
        with pytest.raises(errors.Forbidden):
            await operation.ask(h.plane, weaker, s, "k", "other")
        if operation.name != "create" and not operation.by_session:
            with pytest.raises(errors.SessionNotFound):
                await operation.ask(h.plane, who, nowhere, "k", "other")
        lost = {"send": "turn", "interrupt_turn": "turn", "respond": "question", "resume": "holds"}.get(operation.name)
        if lost is not None:
            with pytest.raises(errors.Missing):
                await operation.ask(h.plane, who, dataclasses.replace(s, **{lost: getattr(nowhere, lost)}), "k", "other")
        assert await effects(h) == before
        assert not (await operation.ask(h.plane, who, s, "k", "first")).replayed


@pytest.mark.ud("UD-91")
async def test_what_the_state_refused_is_accepted_with_the_same_key_once_the_state_permits_it(database, tmp_path):
    """[S4], [S5]: one refusal by state for each operation that has one, with another body than the accepted request."""
    async with house(database, tmp_path) as h:
        p, who = h.plane, h.principal
        limits = Limits(h.database)

        # create: the current Deployment lacks the Agent; a key is taken; no token.
        await deploy(h.database, who.environment_id, manifest(agent("talker"), bundle="3" * 64))
        with pytest.raises(errors.AgentNotFound):
            await p.sessions.create(who, agent="later", idempotency_key="k")
        await h.create(None, key="taken")
        with pytest.raises(errors.SessionKeyConflict):
            await p.sessions.create(who, agent="talker", key="taken", idempotency_key="k")
        with pytest.raises(errors.InputEmpty):
            await p.sessions.create(who, agent="talker", input=[], idempotency_key="k")
        s = await idle(h)
        await limits.set(who.environment_id, EnvironmentLimits(admission=AdmissionLimit(rate=1e-6, burst=1)))
        await h.create(None)
        with pytest.raises(errors.AdmissionUnavailable):
            await p.sessions.create(who, agent="talker", idempotency_key="k")
        with pytest.raises(errors.AdmissionUnavailable):
            await _enqueue(p, who, s, "k", "other")
        await limits.set(who.environment_id, EnvironmentLimits(admission=None))
        assert not (await p.sessions.create(who, agent="talker", key="free", idempotency_key="k")).replayed

        # enqueue, Turn interrupt and send: no token before; the Turn is queued, then running, then takes messages.
        running = json.loads((await _enqueue(p, who, s, "k", "first")).body)["id"]
        await s.process.began(running)
        s.turn = (await h.enqueue(s.session))["id"]
        with pytest.raises(errors.TurnNotRunning):
            await p.turns.interrupt(who, s.session, s.turn, "k")
        with pytest.raises(errors.MessageClosed):
            await _send(p, who, s, "k", "other")
        s.process.settle(running)
        await s.process.began(s.turn)
        with pytest.raises(errors.MessageClosed):
            await _send(p, who, s, "k", "other")
        s.process.say("messages.open", turn=s.turn)
        await s.process.acknowledged(s.process.op)
        assert not (await _send(p, who, s, "k", "first")).replayed

        # respond: an answer that doesn't fit, then one that does.
        s.process.say("question.ask", turn=s.turn, question={"prompt": words("which?"), "answer": {"type": "text"}})
        s.question = (await h.until(s.session, "question.asked"))["data"]["question_id"]
        with pytest.raises(errors.AnswerInvalid):
            await p.questions.respond(who, s.session, s.turn, s.question, {"type": "choice", "selected": []}, "r1", "k")
        assert not (await _respond(p, who, s, "k", "first")).replayed
        assert not (await p.turns.interrupt(who, s.session, s.turn, "k")).replayed

        # resume: a hold that isn't there, then one that is. delete data: open, then closed.
        s.holds = [new_id(), new_id()]
        with pytest.raises(errors.HoldNotFound):
            await _resume(p, who, s, "k", "other")
        s.holds = [json.loads((await p.controls.interrupt(who, s.session, "k")).body)["hold_id"]]
        assert not (await _resume(p, who, s, "k", "first")).replayed
        with pytest.raises(errors.SessionNotClosed):
            await p.retention.delete_data(who, s.session, "k")
        await p.controls.cancel(who, s.session, "k")
        assert not (await p.retention.delete_data(who, s.session, "k")).replayed


@every_write
async def test_identical_requests_at_once_on_two_control_planes_have_one_effect_and_one_receipt(database, tmp_path, operation):
    """[S4]: all get the receipt, one of them as the first."""
    async with house(database, tmp_path) as h, beside(h, tmp_path) as other:
        s = await operation.stage(h)
        who = asker(h, operation, s)
        replies = await asyncio.gather(
            *[operation.ask(plane, who, s, "k", "first") for plane in (h.plane, other, h.plane, other) for _ in range(2)]
        )
        assert {reply.body for reply in replies} == {replies[0].body}
        assert [reply.replayed for reply in replies].count(False) == 1
        async with h.database.connection() as connection:
            rows = await connection.fetch("SELECT receipt FROM idempotency WHERE key = 'k'")
        assert [bytes(row["receipt"]) for row in rows] == [replies[0].body]


@pytest.mark.parametrize("operation", [operation for operation in OPERATIONS if operation.bodies], ids=str)
async def test_different_requests_with_one_key_at_once_on_two_control_planes_have_one_effect(database, tmp_path, operation):
    """[S4]: whoever is second is told of the conflict."""
    async with house(database, tmp_path) as h, beside(h, tmp_path) as other:
        s = await operation.stage(h)
        who = asker(h, operation, s)
        before = {name: number for name, number, _ in await effects(h)}
        found = await asyncio.gather(
            *[operation.ask(plane, who, s, "k", body) for plane, body in ((h.plane, "first"), (other, "other")) for _ in range(2)],
            return_exceptions=True,
        )
        replies = [reply for reply in found if isinstance(reply, Reply)]
        assert len(replies) == 2 and {type(error) for error in found} == {Reply, errors.IdempotencyConflict}
        assert [reply.replayed for reply in replies].count(False) == 1
        after = {name: number for name, number, _ in await effects(h)}
        grown = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
        assert grown.pop("receipts") == 1
        assert set(grown.values()) <= {1}


async def test_a_write_without_a_key_has_no_retry_identity(database, tmp_path):
    """[S4]."""
    async with house(database, tmp_path) as h:
        s = await idle(h)
        bodies = [(await h.plane.turns.enqueue(h.principal, s.session, words("same"), None)).body for _ in range(3)]
        assert len(set(bodies)) == 3
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM idempotency") == 0


async def test_a_retry_is_judged_by_meaning_not_by_spelling(database, tmp_path):
    """[S4]: the order of names and escapes are no difference; a float for an integer is."""
    async with house(database, tmp_path, agent("counter", input_kind="json")) as h:
        texts = ['{"issue": 1, "été": "a\\u00e9\\ud83d\\ude00"}', '{ "\\u00e9t\\u00e9":"aé😀","issue":1 }']

        async def create(text: str) -> Reply:
            return await h.plane.sessions.create(h.principal, agent="counter", input=jsontext.loads(text), idempotency_key="k")

        first, second = [await create(text) for text in texts]
        assert second == Reply(first.body, replayed=True)
        for other in (texts[0].replace("1", "1.0"), texts[0].replace("1", "true"), texts[0].replace("1", '"1"'), '{"issue": 1}'):
            with pytest.raises(errors.IdempotencyConflict):
                await create(other)


def test_fingerprints_tell_apart_what_differs_and_nothing_else():
    """[S4]: one table of values, no two the same; integers exact, floats by their shortest form, text by code points."""
    different = [
        *[None, True, False, 0, 0.0, -0.0, 1, 1.0, "1", "", [], {}, [1], [1, 2], [2, 1], [[1], 2], 2**53, 2**53 + 1, float(2**53), 10**30],
        *[
            0.1,
            0.1 + 0.2,
            0.3,
            5e-324,
            "\u00e9",
            "e\u0301",
            "😀",
            "\x00",
            " ",
            {"a": 1},
            {"a": 1.0},
            {"a": None},
            {"A": 1},
            {"a": {"b": 1}},
        ],
    ]
    prints = [jsontext.fingerprint(value) for value in different]
    for (left, a), (right, b) in itertools.combinations(zip(different, prints, strict=True), 2):
        assert a != b, (left, right)
    assert jsontext.fingerprint({"b": 1, "a": {"d": 2, "c": 3}}) == jsontext.fingerprint({"a": {"c": 3, "d": 2}, "b": 1})
    by_code_point = '{"z":3,"\uffff":2,"\U00010000":1}'.encode()
    assert jsontext.canonical({"\U00010000": 1, "\uffff": 2, "z": 3}) == by_code_point, "UTF-16 would put the last one before"
    assert jsontext.canonical(1e22) == b"1e+22" and jsontext.canonical(10**22) == b"1" + b"0" * 22
    with pytest.raises(errors.ContentInvalid):
        jsontext.loads('{"a": 1, "a": 1}')
    with pytest.raises(errors.ContentInvalid):
        jsontext.loads('{"a": {"b": 1, "\\u0062": 2}}')


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(value=_JSON, shuffle=st.randoms(use_true_random=False))
def test_any_value_has_one_fingerprint_whatever_way_it_is_spelled(value, shuffle):
    """[S4]: names reordered at every level, everything escaped, white space added."""

    def spelled(found: Any) -> Any:
        if isinstance(found, dict):
            items = [(name, spelled(member)) for name, member in found.items()]
            shuffle.shuffle(items)
            return dict(items)
        return [spelled(member) for member in found] if isinstance(found, list) else found

    text = json.dumps(spelled(value), ensure_ascii=True, indent=shuffle.choice([None, 1]))
    assert jsontext.fingerprint(jsontext.loads(text)) == jsontext.fingerprint(value)


@pytest.mark.parametrize("key", ["", "x" * 513, "a\nb", "\x00", "\u2028"])
async def test_a_key_that_is_no_key_is_refused_before_anything_happens(database, tmp_path, key):
    """[S4]: 1 to 512 bytes of printable text."""
    async with house(database, tmp_path) as h:
        s = await working(h)
        before = await effects(h)
        for operation in OPERATIONS:
            with pytest.raises(errors.InvalidRequest):
                await operation.ask(h.plane, asker(h, operation, s), dataclasses.replace(s, holds=[new_id(), new_id()]), key, "first")
        assert await effects(h) == before
