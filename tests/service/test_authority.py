"""What a Session may do to another one. SPEC [M1], [M4]."""

from __future__ import annotations

import json

import pytest
from tests.service.scripted import agent, house
from tests.service.trees import GO, as_session, control, root, spawn

from helmr.protocol import policy
from helmr.protocol.errors import (
    ComputerNotFound,
    Forbidden,
    HoldNotFound,
    SessionNotOpen,
    TurnNotFound,
)
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def family(h):
    """origin -> parent -> child -> grandchild owned, and `started` that the child started: their ids by name."""
    ids = {"origin": await root(h)}
    for owner, name in (("origin", "parent"), ("parent", "child"), ("child", "grandchild")):
        ids[name] = await spawn(h, ids[owner])
    started = await h.plane.sessions.start(as_session(h, ids["child"]), agent="talker")
    ids["started"] = json.loads(started.body)["session"]["id"]
    ids["stranger"] = await root(h)
    return ids


async def allowed(ask, *refusals):
    """Whether the request passes authority: any refusal but Forbidden comes after it."""
    try:
        await ask
    except Forbidden:
        return False
    except refusals:
        return True
    return True


PARENTS = {("origin", "parent"), ("parent", "child"), ("child", "grandchild")}
OWNERS = PARENTS | {("origin", "child"), ("origin", "grandchild"), ("parent", "grandchild")}
READERS = PARENTS | {("child", "started"), ("origin", "child"), ("origin", "grandchild"), ("origin", "started")}


@pytest.mark.parametrize(
    ("operation", "permitted"),
    [
        ("interrupt_session", OWNERS),
        ("close_session", OWNERS),
        ("cancel_session", OWNERS),
        ("send_turn", OWNERS),
        ("interrupt_turn", OWNERS),
        ("resume_session", PARENTS),
        ("inspect_session", READERS),
        ("inspect_turn", READERS),
        ("events", READERS),
        ("enqueue", None),
        ("explain", frozenset()),
    ],
)
async def test_standing_decides_what_a_session_may_do_to_which(database, tmp_path, operation, permitted):
    """[M4]: controls and messages by any owner, resume by the parent, reading by parent, requester and origin, enqueue by anybody; never
    the other way, never to itself."""
    async with house(database, tmp_path) as h:
        ids = await family(h)
        controls, turns = h.plane.controls, h.plane.turns
        for asks, caller in ids.items():
            for target, session in ids.items():
                by = as_session(h, caller)
                ask = {
                    "interrupt_session": lambda by=by, s=session: controls.interrupt(by, s, None),
                    "close_session": lambda by=by, s=session: controls.close(by, s, None),
                    "cancel_session": lambda by=by, s=session: controls.cancel(by, s, None),
                    "send_turn": lambda by=by, s=session: turns.send(by, s, new_id(), GO, None),
                    "interrupt_turn": lambda by=by, s=session: turns.interrupt(by, s, new_id(), None),
                    "resume_session": lambda by=by, s=session: controls.resume(by, s, new_id(), None),
                    "inspect_session": lambda by=by, s=session: h.plane.sessions.get(by, s),
                    "inspect_turn": lambda by=by, s=session: turns.get(by, s, new_id(), 0),
                    "events": lambda by=by, s=session: h.plane.events.page(by, s, 0, 10),
                    "enqueue": lambda by=by, s=session: turns.enqueue(by, s, GO, None),
                    "explain": lambda by=by, s=session: h.plane.explanations.explain(by, s),
                }[operation]
                expected = permitted is None or (asks, target) in permitted
                passed = await allowed(ask(), SessionNotOpen, HoldNotFound, TurnNotFound)
                assert passed == expected, (operation, asks, target)


async def test_a_policy_grants_operations_on_named_agents_only(database, tmp_path):
    """[M1], [M4]: permission, grant and standing are all needed."""
    async with house(database, tmp_path, agent("talker"), agent("other")) as h:
        parent = await root(h)
        child, other = await spawn(h, parent), await spawn(h, parent, agent="other")
        grants = policy.parse(
            {
                "allow": [
                    {"operation": "enqueue", "agents": ["talker"]},
                    {"operation": "inspect_session", "agents": ["other"]},
                    {"operation": "spawn", "agents": ["talker"], "computer": "caller"},
                    {"operation": "start", "agents": ["talker"]},
                ]
            }
        )
        by = as_session(h, parent, grants=grants)
        await h.plane.turns.enqueue(by, child, GO, None)
        for ask in (
            lambda: h.plane.turns.enqueue(by, other, GO, None),
            lambda: h.plane.sessions.get(by, child),
            lambda: h.plane.controls.close(by, child, None),
            lambda: h.plane.sessions.spawn(by, agent="talker"),
            lambda: h.plane.sessions.spawn(by, agent="talker", computer=new_id()),
            lambda: h.plane.sessions.start(by, agent="talker", computer="caller"),
            lambda: h.plane.sessions.start(by, agent="other"),
        ):
            with pytest.raises(Forbidden):
                await ask()
        assert (await h.plane.sessions.get(by, other)).id == other
        assert [session.id for session in (await h.plane.sessions.list(by)).items] == [other]
        await h.plane.sessions.start(by, agent="talker")
        with pytest.raises(ComputerNotFound):
            await h.plane.sessions.spawn(by, agent="talker", computer="caller")
        nothing = as_session(h, parent, grants=frozenset())
        assert nothing.permissions == frozenset()
        assert "questions.respond" not in as_session(h, parent).permissions, "a Session never answers [Q4]"


async def test_a_session_lists_what_it_may_inspect_and_no_more(database, tmp_path):
    """[M4]: what it asked for; all that came of it when it is the origin."""
    async with house(database, tmp_path) as h:
        ids = await family(h)
        names = {session: name for name, session in ids.items()}
        for caller, session in ids.items():
            page = await h.plane.sessions.list(as_session(h, session))
            assert {(caller, names[item.id]) for item in page.items} == {pair for pair in READERS if pair[0] == caller}
        desk = (await h.create(None, key="desk"))["session"]["id"]
        by = as_session(h, ids["origin"])
        assert (await h.plane.sessions.list(by, agent="talker", key="desk")).items == ()
        assert (await h.plane.sessions.list(h.principal, agent="talker", key="desk")).items[0].id == desk


async def test_who_enqueued_a_turn_may_read_that_turn_and_no_other(database, tmp_path):
    """[M4]: the requester of a Turn."""
    async with house(database, tmp_path) as h:
        asking, target = await root(h), await root(h)
        by = as_session(h, asking)
        mine = json.loads((await h.plane.turns.enqueue(by, target, GO, None)).body)["id"]
        theirs = (await h.enqueue(target))["id"]
        assert json.loads(await h.plane.turns.get(by, target, mine, 0))["source"]["requester_session_id"] == asking
        for session, turn in ((target, theirs), (asking, mine), (target, new_id())):
            with pytest.raises(Forbidden):
                await h.plane.turns.get(by, session, turn, 0)
        with pytest.raises(Forbidden):
            await h.plane.turns.list(by, target, None, 50)


async def test_what_no_session_may_do_is_refused_whatever_its_standing(database, tmp_path):
    """[Q4], [S22], [S23]: questions, deletion of data, publishing; an operation that nobody thought of for Sessions is refused too."""
    async with house(database, tmp_path) as h:
        parent = await root(h)
        child = await spawn(h, parent)
        await control(h, "close", child)
        by, turn, question = as_session(h, parent), new_id(), new_id()
        for ask in (
            lambda: h.plane.questions.list(by, child, turn, (), None, 50),
            lambda: h.plane.questions.get(by, child, turn, question),
            lambda: h.plane.questions.find(by, question),
            lambda: h.plane.questions.of_environment(by, (), None, 50),
            lambda: h.plane.questions.respond(by, child, turn, question, {"type": "text", "text": "yes"}, "r", None),
            lambda: h.plane.retention.delete_data(by, child, None),
            lambda: h.plane.explanations.explain(by, child),
            lambda: h.plane.sessions.create(by, agent="talker"),
            lambda: h.plane.agents.list(by, None, None, 50),
        ):
            with pytest.raises(Forbidden):
                await ask()
