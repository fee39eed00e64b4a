"""Idle trees: since when, and their close. SPEC [S18], [S21]."""

from __future__ import annotations

import json

import pytest
from tests.service.scripted import agent, house
from tests.service.trees import GO, aged, as_session, control, root, spawn, working

pytestmark = pytest.mark.anyio


async def test_idle_since_is_the_latest_of_the_owned_tree_and_null_while_any_of_it_is_busy(database, tmp_path):
    """[S21]: closed descendants don't count, started ones neither; a held one that has queued Turns is idle."""
    async with house(database, tmp_path) as h:
        top = await root(h)
        middle = await spawn(h, top)
        below = await spawn(h, middle)
        await aged(h, **{top: 30, middle: 20, below: 10})
        since = {session: (await h.session(session))["idle_since"] for session in (top, middle, below)}
        assert since[top] == since[middle] == since[below] is not None
        worker, process, turn = await working(h, below)
        for session in (top, middle, below, worker):
            assert (await h.session(session))["idle_since"] is None
        beside = json.loads((await h.plane.sessions.start(as_session(h, top), agent="talker", input=GO)).body)
        await (await h.host.next_process()).began(beside["turn"]["id"])
        process.settle(turn)
        await h.turn(worker, turn)
        assert (await h.session(top))["idle_since"] == (await h.session(worker))["idle_since"] is not None
        await control(h, "interrupt", worker)
        await h.enqueue(worker)
        assert (await h.session(top))["idle_since"] == (await h.session(worker))["idle_since"] is not None
        await control(h, "close", worker)
        assert (await h.session(worker))["idle_since"] is None
        assert (await h.session(top))["idle_since"] == since[top]


async def test_a_tree_that_is_idle_for_its_roots_period_closes_with_the_reason_idle(database, tmp_path):
    """[S21], [S20]: held queued Turns are no work and are cancelled; a child that was busy lately keeps its owner open."""
    from helmr.control.upkeep.idle_close import IdleClose

    async with house(database, tmp_path, agent("talker", close_after_idle_ms=600_000), agent("keeper", close_after_idle_ms=None)) as h:
        top = await root(h)
        child = await spawn(h, top, agent="keeper")
        await control(h, "interrupt", child)
        turn = (await h.enqueue(child))["id"]
        await aged(h, **{top: 60, child: 5})
        await IdleClose(h.plane).run()
        assert (await h.session(top))["status"] == "open", "what it owns was busy five minutes ago"
        await aged(h, **{child: 11})
        await IdleClose(h.plane).run()
        for session in (top, child):
            shape = await h.session(session)
            assert (shape["status"], shape["close_reason"]) == ("closed", "idle")
            assert (await h.events(session))[-1]["data"] == {"reason": "idle"}
        assert (await h.turn(child, turn, 0))["status"] == "cancelled"
        assert "session.close" not in await h.kinds(top)


async def test_an_owned_session_closes_by_its_own_period_while_its_owner_works_on(database, tmp_path):
    """[S21], contract "Holds": also one that an interrupt of its owner holds."""
    from helmr.control.upkeep.idle_close import IdleClose

    async with house(database, tmp_path, agent("talker", close_after_idle_ms=600_000)) as h:
        top, process, turn = await working(h)
        done, held = await spawn(h, top), await spawn(h, top)
        await aged(h, **{done: 11})
        await IdleClose(h.plane).run()
        assert [(await h.session(session))["status"] for session in (top, done, held)] == ["open", "closed", "open"]
        assert (await h.session(done))["close_reason"] == "idle"
        await control(h, "interrupt", top)
        await aged(h, **{held: 11})
        await IdleClose(h.plane).run()
        assert (await h.session(held))["close_reason"] == "idle"
        process.settle(turn, "stopped")
        assert (await h.turn(top, turn))["status"] == "interrupted"
        assert (await h.session(top))["status"] == "open"


async def test_busy_trees_never_hide_idle_ones_from_the_sweeper(database, tmp_path, monkeypatch):
    """[S21]: roots whose children work are no candidates."""
    from helmr.control.upkeep import idle_close

    async with house(database, tmp_path, agent("talker", close_after_idle_ms=600_000)) as h:
        busy = [await root(h) for _ in range(3)]
        children = [await spawn(h, top) for top in busy]
        idle = await root(h)
        await aged(h, **dict.fromkeys([*busy, idle], 60))
        await aged(h, **dict.fromkeys(children, 1))
        monkeypatch.setattr(idle_close, "BATCH", 1)
        await idle_close.IdleClose(h.plane).run()
        assert (await h.session(idle))["status"] == "closed"
        assert {(await h.session(session))["status"] for session in (*busy, *children)} == {"open"}


async def test_an_enqueue_to_a_child_that_comes_first_keeps_the_tree_open(database, tmp_path):
    """[S21]: derived again under the locks; no Turn is lost."""
    async with house(database, tmp_path, agent("talker", close_after_idle_ms=600_000)) as h:
        top = await root(h)
        child = await spawn(h, top)
        await aged(h, **{top: 60, child: 60})
        turn = (await h.enqueue(child))["id"]
        assert not await h.plane.controls.close_idle(top)
        process = await h.host.next_process()
        await process.began(turn)
        process.settle(turn)
        assert (await h.turn(child, turn))["status"] == "completed"


async def test_closing_owners_of_working_children_never_hide_what_is_left_to_close(database, tmp_path, monkeypatch):
    """[S18], I6: the duty finds a closing Session whose last step was lost with its control plane, however many others wait."""
    from helmr.control.upkeep import closings

    async with house(database, tmp_path) as h:
        waiting = [await root(h) for _ in range(2)]
        for top in waiting:
            await working(h, top)
            await control(h, "close", top)
        left = await root(h)
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET status = 'closing', close_reason = 'close' WHERE id = $1", left)
        monkeypatch.setattr(closings, "BATCH", 1)
        await closings.Closings(h.plane).run()
        assert (await h.session(left))["status"] == "closed"
        assert {(await h.session(top))["status"] for top in waiting} == {"closing"}
