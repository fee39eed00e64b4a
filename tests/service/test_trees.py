"""Close and cancel of owned trees. SPEC [S16], [S18]-[S20]."""

from __future__ import annotations

import json

import pytest
from tests.service.races.forcing import referee
from tests.service.scripted import house
from tests.service.trees import as_session, control, order_of, root, spawn, working

from helmr.protocol.errors import (
    SessionNotOpen,
)

pytestmark = pytest.mark.anyio


async def test_close_refuses_new_turns_in_the_whole_tree_and_each_session_closes_after_what_it_owns(database, tmp_path):
    """[S18], [S20]: running and queued work of the whole tree is done first; children close before parents, with the reason."""
    async with house(database, tmp_path) as h:
        top, above, top_turn = await working(h)
        middle, process, turn = await working(h, top)
        below, deep, deep_turn = await working(h, middle)
        idle = await spawn(h, top)
        queued = (await h.enqueue(below))["id"]
        assert await control(h, "close", top) == {"session_id": top, "status": "closing"}
        statuses = {session: (await h.session(session))["status"] for session in (top, middle, below, idle)}
        assert statuses == {top: "closing", middle: "closing", below: "closing", idle: "closed"}
        for session in (top, middle, below, idle):
            with pytest.raises(SessionNotOpen):
                await h.enqueue(session)
            with pytest.raises(SessionNotOpen):
                await spawn(h, session)
        above.settle(top_turn)
        process.settle(turn)
        assert (await h.turn(top, top_turn))["status"] == "completed" == (await h.turn(middle, turn))["status"]
        assert (await h.session(top))["status"] == "closing", "what it owns isn't closed"
        deep.settle(deep_turn)
        await deep.began(queued)
        assert (await h.session(middle))["status"] == "closing"
        deep.settle(queued)
        await h.until(top, "session.closed")
        assert {(await h.turn(below, each))["status"] for each in (deep_turn, queued)} == {"completed"}
        assert await order_of(h, "session.closed", top, middle, below) == [below, middle, top]
        assert {(await h.session(session))["close_reason"] for session in statuses} == {"close"}
        assert await order_of(h, "session.close", *statuses) == [top], "who was asked says so, not what it owns"


async def test_close_of_a_child_leaves_its_owner_open_and_its_siblings_too(database, tmp_path):
    """[S18]."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        first, second = await spawn(h, top), await spawn(h, top)
        below = await spawn(h, first)
        assert (await control(h, "close", first, by=as_session(h, top)))["status"] == "closed"
        statuses = [(await h.session(session))["status"] for session in (top, first, below, second)]
        assert statuses == ["open", "closed", "closed", "open"]
        (said,) = [event["data"] for event in await h.events(first) if event["kind"] == "session.close"]
        assert said["by"] == {"kind": "session", "id": top}


async def test_close_cancels_what_an_inherited_hold_blocks_and_waits_for_nothing_else(database, tmp_path):
    """[S18]: close never waits on a hold; the draining Turn ends under its mark."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        child, process, turn = await working(h, top)
        blocked = (await h.enqueue(child))["id"]
        await control(h, "interrupt", top)
        assert (await control(h, "close", top))["status"] == "closing"
        assert (await h.turn(child, blocked, 0))["status"] == "cancelled"
        process.settle(turn, "stopped")
        await h.until(top, "session.closed")
        assert (await h.turn(child, turn))["status"] == "interrupted"
        assert (await h.session(top))["holds"] == [] == (await h.session(child))["holds"]


async def test_cancel_ends_the_whole_tree_at_once_children_before_parents(database, tmp_path):
    """[S19]: running and queued are cancelled, all is closed in the same commit; whatever processes still say changes nothing."""
    async with house(database, tmp_path) as h:
        top, above, top_turn = await working(h)
        middle, process, turn = await working(h, top)
        below, deep, deep_turn = await working(h, middle)
        started = json.loads((await h.plane.sessions.start(as_session(h, middle), agent="talker")).body)["session"]["id"]
        queued = (await h.enqueue(below))["id"]
        assert await control(h, "cancel", top) == {"session_id": top, "status": "closed"}
        pairs = ((top, top_turn), (middle, turn), (below, deep_turn), (below, queued))
        assert {(await h.turn(session, each, 0))["status"] for session, each in pairs} == {"cancelled"}
        for session in (top, middle, below):
            shape = await h.session(session)
            assert (shape["status"], shape["close_reason"], shape["idle_since"]) == ("closed", "cancel", None)
        assert await order_of(h, "turn.cancelled", top, middle, below) == [below, below, middle, top]
        assert await order_of(h, "session.closed", top, middle, below) == [below, middle, top]
        assert (await h.session(started))["status"] == "open", "independent Sessions go on"
        deep.output(deep_turn, "too late")
        await deep.acknowledged(deep.settle(deep_turn, result="too late"))
        assert (await h.kinds(below))[-1] == "session.closed"
        for playing in (above, process, deep):
            assert (await playing.heard("session.end"))["reason"] == "cancelled"


async def test_cancel_ends_a_closing_tree_and_a_cancelled_child_lets_its_closing_owner_close(database, tmp_path):
    """[S19], [S20]: what was closing for a close is now closed by the cancel; the owner keeps its own reason."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        child, _, turn = await working(h, top)
        assert (await control(h, "close", top))["status"] == "closing"
        assert (await control(h, "cancel", child))["status"] == "closed"
        assert (await h.session(top))["status"] == "closed"
        assert [(await h.session(session))["close_reason"] for session in (child, top)] == ["cancel", "close"]
        assert (await h.turn(child, turn, 0))["status"] == "cancelled"
        other = await root(h)
        below, _, _ = await working(h, other)
        await control(h, "close", other)
        assert (await control(h, "cancel", other))["status"] == "closed"
        assert {(await h.session(session))["close_reason"] for session in (other, below)} == {"cancel"}


@pytest.mark.parametrize("name", ["close", "cancel"])
async def test_ending_what_is_ending_says_its_status_and_writes_nothing(database, tmp_path, name):
    """[S20], over a tree."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        child, process, turn = await working(h, top)
        await control(h, "close", top)
        before = {session: await h.kinds(session) for session in (top, child)}
        if name == "close":
            for session in (top, child):
                assert await control(h, "close", session) == {"session_id": session, "status": "closing"}
            assert {session: await h.kinds(session) for session in (top, child)} == before
        process.settle(turn)
        await h.until(top, "session.closed")
        before = {session: await h.kinds(session) for session in (top, child)}
        for session in (top, child):
            assert await control(h, name, session) == {"session_id": session, "status": "closed"}
        assert {session: await h.kinds(session) for session in (top, child)} == before


@pytest.mark.parametrize("name", ["close", "cancel", "interrupt"])
@pytest.mark.parametrize("first", ["control", "spawn"])
async def test_a_spawn_that_races_a_control_of_its_tree_is_refused_or_included(database, tmp_path, name, first):
    """[S19], [S16]: both wait for the same row; whoever gets it first, no child is left open, unheld or running in an ended tree."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        middle = await spawn(h, top)
        asks = {"control": lambda: control(h, name, top), "spawn": lambda: spawn(h, middle, text="go")}
        async with referee(h) as r, r.queue(middle) as queue:
            entrants = {first: await queue.first(asks.pop(first))}
            for other, ask in asks.items():
                entrants[other] = await queue.then(ask)
        assert entrants["control"].code == "ok"
        child = entrants["spawn"].value
        if name != "interrupt" and first == "control":
            assert isinstance(child, SessionNotOpen)
            return
        shape = await h.session(child)
        if name == "interrupt":
            assert [hold["session_id"] for hold in shape["holds"]] == [top]
            assert shape["initial_turn"]["status"] in ("queued", "interrupted")
        elif name == "cancel":
            assert shape["status"] == "closed" and shape["initial_turn"]["status"] == "cancelled"
        else:
            process = await h.host.next_process()
            await process.began(shape["initial_turn"]["id"])
            assert (await h.session(child))["status"] == "closing" == (await h.session(top))["status"]
            process.settle(shape["initial_turn"]["id"])
            await h.until(top, "session.closed")


async def test_a_tree_of_a_hundred_is_held_freed_and_ended_as_one(database, tmp_path):
    """[S16]-[S19]: whatever its size; each Session is told once and counts right."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        level, everything = [top], [top]
        for width in (3, 4, 4, 1):
            level = [await spawn(h, owner, text="go") for owner in level for _ in range(width)]
            everything += level
        assert len(everything) == 1 + 3 + 12 + 48 + 48
        by_session = {}
        for _ in everything[1:]:
            process = await h.host.next_process()
            by_session[process.session_id] = process
            await process.heard("turn.start")
        hold = (await control(h, "interrupt", top))["hold_id"]
        for process in by_session.values():
            await process.heard("turn.stop")
            process.settle(process.started[0], "stopped")
        for session, process in by_session.items():
            assert (await h.turn(session, process.started[0]))["status"] == "interrupted"
        assert (await h.session(top))["idle_since"] is not None
        await control(h, "resume", top, hold)
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT sum(held) FROM sessions") == 0
        again = [(await h.enqueue(session))["id"] for session in everything[1:]]
        assert await control(h, "close", top) == {"session_id": top, "status": "closing"}
        for session, turn in zip(everything[1:], again, strict=True):
            await by_session[session].began(turn)
        for session, turn in zip(everything[1:-1], again, strict=False):
            by_session[session].settle(turn)
        assert (await h.session(top))["status"] == "closing"
        by_session[everything[-1]].settle(again[-1])
        await h.until(top, "session.closed")
        async with h.database.connection() as connection:
            rows = await connection.fetch("SELECT DISTINCT status, close_reason FROM sessions")
        assert [tuple(row) for row in rows] == [("closed", "close")]
