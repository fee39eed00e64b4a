"""Holds over owned trees: inherited, released, and by whom. SPEC [S15]-[S18]."""

from __future__ import annotations

import json

import pytest
from tests.service.scripted import house
from tests.service.trees import GO, as_session, control, root, spawn, working

from helmr.protocol.errors import (
    Forbidden,
    HoldNotFound,
    HoldNotReleasable,
    SessionNotOpen,
)
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


@pytest.mark.ud("UD-23")
async def test_an_interrupt_holds_and_marks_the_whole_owned_tree_and_its_release_frees_it(database, tmp_path):
    """[S16], [S17]: one hold, inherited; independent Sessions and owners are untouched; queued Turns wait, then go on."""
    async with house(database, tmp_path) as h:
        top, above, top_turn = await working(h)
        middle, process, turn = await working(h, top)
        below, deep, deep_turn = await working(h, middle)
        started = json.loads((await h.plane.sessions.start(as_session(h, middle), agent="talker", input=GO)).body)
        beside = await h.host.next_process()
        await beside.began(started["turn"]["id"])
        waiting = (await h.enqueue(below))["id"]
        hold = (await control(h, "interrupt", middle))["hold_id"]
        assert (await process.heard("turn.stop"))["reason"] == (await deep.heard("turn.stop"))["reason"] == "session_interrupted"
        process.settle(turn, "stopped")
        deep.settle(deep_turn, "stopped")
        assert {(await h.turn(middle, turn))["status"], (await h.turn(below, deep_turn))["status"]} == {"interrupted"}
        assert [(seen["id"], seen["session_id"], seen["kind"]) for seen in (await h.session(below))["holds"]] == [
            (hold, middle, "interrupt")
        ]
        assert (await h.session(top))["holds"] == [] == (await h.session(started["session"]["id"]))["holds"]
        held = [event["data"] for event in await h.events(below) if event["kind"] == "session.held"]
        assert held == [{"kind": "interrupt", "inherited": True}]
        with pytest.raises(HoldNotFound):
            await control(h, "resume", below, hold)
        assert (await h.turn(below, waiting, 0))["status"] == "queued"
        await control(h, "resume", middle, hold)
        await deep.began(waiting)
        for session, playing, running in ((top, above, top_turn), (started["session"]["id"], beside, started["turn"]["id"])):
            assert (await h.turn(session, running, 0))["status"] == "running"
            assert "turn.stop" not in {said["t"] for said in playing.received}


async def test_a_child_of_a_held_tree_is_born_held_and_freed_with_it(database, tmp_path):
    """[S16]: by each interrupt of its owners, once each; other kinds hold only their own Session."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        middle = await spawn(h, top)
        holds = [(await control(h, "interrupt", session))["hold_id"] for session in (top, middle)]
        async with h.database.connection() as connection:
            await connection.execute("INSERT INTO holds VALUES ($1, $2, 'process_failed', '{}', NULL, now())", new_id(), middle)
            await connection.execute("UPDATE sessions SET held = held + 1 WHERE id = $1", middle)
        made = json.loads((await h.plane.sessions.spawn(as_session(h, middle), agent="talker", input=GO)).body)
        child = made["session"]["id"]
        shape = await h.session(child)
        assert {hold["id"] for hold in shape["holds"]} == set(holds) and shape["idle_since"] is not None
        assert await h.kinds(child) == ["session.held", "session.held", "turn.queued"]
        await control(h, "resume", top, holds[0])
        assert (await h.turn(child, made["turn"]["id"], 0))["status"] == "queued"
        await control(h, "resume", middle, holds[1])
        process = await h.host.next_process()
        assert process.session_id == child
        await process.began(made["turn"]["id"])


async def test_a_session_releases_holds_of_its_children_only_and_of_interrupts_only_its_own(database, tmp_path):
    """[S17]: `can_release` says so beforehand; 403 differs from `hold_not_found`."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        middle = await spawn(h, top)
        below = await spawn(h, middle)
        by = {name: as_session(h, session) for name, session in (("top", top), ("middle", middle), ("below", below))}
        own = (await control(h, "interrupt", below, by=by["middle"]))["hold_id"]
        owners = (await control(h, "interrupt", below, by=by["top"]))["hold_id"]
        persons = (await control(h, "interrupt", below))["hold_id"]
        failed = new_id()
        async with h.database.connection() as connection:
            await connection.execute("INSERT INTO holds VALUES ($1, $2, 'process_failed', '{}', NULL, now())", failed, below)
            await connection.execute("UPDATE sessions SET held = held + 1 WHERE id = $1", below)

        async def releasable(principal):
            return {hold.id for hold in (await h.plane.sessions.get(principal, below)).holds if hold.can_release}

        assert await releasable(by["middle"]) == {own, failed}
        assert await releasable(by["top"]) == set(), "it is no parent, although it placed one"
        assert await releasable(h.principal) == {own, owners, persons, failed}
        for hold in (owners, persons):
            with pytest.raises(Forbidden):
                await control(h, "resume", below, hold, by=by["middle"])
        for principal in (by["top"], by["below"]):
            for hold in (own, owners, failed, new_id()):
                with pytest.raises(Forbidden):
                    await control(h, "resume", below, hold, by=principal)
        with pytest.raises(HoldNotFound):
            await control(h, "resume", below, new_id(), by=by["middle"])
        for hold in (own, failed):
            await control(h, "resume", below, hold, by=by["middle"])
            with pytest.raises(HoldNotFound):
                await control(h, "resume", below, hold, by=by["middle"])
        assert {hold["id"] for hold in (await h.session(below))["holds"]} == {owners, persons}


async def test_the_hold_of_an_owner_that_the_reader_cannot_read_has_no_ids(database, tmp_path):
    """[S17], contract `Session.holds`."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        middle = await spawn(h, top)
        below = await spawn(h, middle)
        hold = (await control(h, "interrupt", top))["hold_id"]
        (seen,) = (await h.plane.sessions.get(as_session(h, middle), below)).holds
        assert (seen.id, seen.session_id, seen.kind, seen.can_release) == (None, None, "interrupt", False)
        (seen,) = (await h.plane.sessions.list(as_session(h, middle))).items[0].holds
        assert (seen.id, seen.session_id) == (None, None)
        (seen,) = (await h.plane.sessions.get(h.principal, below)).holds
        assert (seen.id, seen.session_id, seen.can_release) == (hold, top, True)


async def test_storage_pressure_is_never_released_by_hand(database, tmp_path):
    """[S17]: nor by a parent."""
    async with house(database, tmp_path) as h:
        parent = await root(h)
        child, hold = await spawn(h, parent), new_id()
        async with h.database.connection() as connection:
            await connection.execute("INSERT INTO holds VALUES ($1, $2, 'storage_pressure', '{}', NULL, now())", hold, child)
            await connection.execute("UPDATE sessions SET held = held + 1 WHERE id = $1", child)
        for by in (h.principal, as_session(h, parent)):
            (seen,) = (await h.plane.sessions.get(by, child)).holds
            assert not seen.can_release
            with pytest.raises(HoldNotReleasable):
                await control(h, "resume", child, hold, by=by)


async def test_a_closing_descendant_finishes_what_runs_and_loses_what_waits_when_its_owner_is_interrupted(database, tmp_path):
    """[S16], [S18]."""
    async with house(database, tmp_path) as h:
        top, _, _ = await working(h)
        child, process, turn = await working(h, top)
        waiting = (await h.enqueue(child))["id"]
        assert (await control(h, "close", child))["status"] == "closing"
        await control(h, "interrupt", top)
        assert (await h.turn(child, waiting, 0))["status"] == "cancelled"
        assert "turn.stopping" not in await h.kinds(child)
        process.settle(turn, result="finished")
        assert (await h.turn(child, turn))["status"] == "completed"
        await h.until(child, "session.closed")
        assert (await h.session(top))["status"] == "open"


async def test_a_closing_session_cannot_be_interrupted_but_its_turn_can(database, tmp_path):
    """[S15], [S16]."""
    async with house(database, tmp_path) as h:
        session, process, turn = await working(h)
        await control(h, "close", session)
        with pytest.raises(SessionNotOpen):
            await control(h, "interrupt", session)
        await h.plane.turns.interrupt(h.principal, session, turn, None)
        await process.heard("turn.stop")
        process.settle(turn, "stopped")
        assert (await h.turn(session, turn))["status"] == "interrupted"
        await h.until(session, "session.closed")


async def test_a_hold_that_appears_while_closing_cancels_what_it_blocks(database, tmp_path):
    """[S18]: three lost processes of a closing child hold it; its owner closes all the same."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        child, process, _ = await working(h, top)
        first, second = (await h.enqueue(child))["id"], (await h.enqueue(child))["id"]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET strikes = 2 WHERE id = $1", child)
        assert (await control(h, "close", top))["status"] == "closing"
        process.die("killed")
        await h.until(top, "session.closed")
        assert {(await h.turn(child, turn, 0))["status"] for turn in (first, second)} == {"cancelled"}
        closed = [(await h.session(session))["close_reason"] for session in (child, top)]
        assert closed == ["close", "close"] and (await h.session(child))["holds"] == []
