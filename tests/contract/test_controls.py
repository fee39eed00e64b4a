"""contract, "Controls": the table, row by row, over a Session, what it owns, and what it started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.contract.stage import play

from helmr.protocol.errors import AskCancelled, HoldNotFound, SessionNotOpen, TurnNotRunning
from helmr.protocol.ids import new_id
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


async def nothing(turn, ctx):
    return "done"


@dataclass
class Cast:
    """A parent with a running and a queued Turn, an owned child and an independent Session that it started, all three running."""

    parent: Any
    child: Any
    started: Any
    running: dict[str, Any]
    queued: Any
    gate: Gate

    async def statuses(self):
        return {name: (await turn.get()).status for name, turn in (*self.running.items(), ("queued", self.queued))}

    async def sessions(self):
        return [(await session.get()).status for session in (self.parent, self.child, self.started)]


@pytest.fixture
async def cast(stage):
    gate = Gate()

    async def waits(turn, ctx):
        await turn.output.write("here")
        await gate.wait()
        return "done"

    made = await stage.begin(waits)
    running, sessions = {"parent": made.turn}, {"parent": made.session}
    for operation, name in (("spawn", "child"), ("start", "started")):
        receipt = stage.by(operation, made.session.id, agent="actor", input=play(waits))
        sessions[name] = stage.client.sessions.ref(receipt["session"]["id"])
        running[name] = sessions[name].turns.ref(receipt["turn"]["id"])
    for session in sessions.values():
        await stage.until(session, "turn.output")
    queued = await made.session.enqueue(play(nothing))
    yield Cast(**sessions, running=running, queued=queued, gate=gate)
    gate.open()
    for session in sessions.values():
        await session.cancel()


async def test_turn_interrupt_interrupts_one_running_turn_without_a_hold_or_effects_on_owned_sessions(stage, cast):
    """[S15]."""
    await cast.running["parent"].interrupt()
    assert (await cast.running["parent"].wait()).status == "interrupted"
    assert (await cast.queued.wait()).status == "completed", "the next Turn runs once the handler has stopped"
    assert (await cast.parent.get()).holds == ()
    assert (await cast.statuses())["child"] == "running"


@pytest.mark.parametrize("target", ["queued", "settled"])
async def test_turn_interrupt_of_a_queued_or_settled_turn_is_rejected(stage, cast, target):
    """[S15]."""
    turn = cast.queued
    if target == "settled":
        turn = (await stage.begin(nothing)).turn
        await turn.wait()
    with pytest.raises(TurnNotRunning):
        await turn.interrupt()


async def test_session_interrupt_stops_the_running_turns_and_holds_the_session_and_what_it_owns(stage, cast):
    """[S16]: queued Turns stay queued; started Sessions go on."""
    receipt = await cast.parent.interrupt()
    assert {(await cast.running[name].wait()).status for name in ("parent", "child")} == {"interrupted"}
    assert await cast.statuses() == {"parent": "interrupted", "child": "interrupted", "started": "running", "queued": "queued"}
    for session in (cast.parent, cast.child):
        assert [(hold.id, hold.session_id) for hold in (await session.get()).holds] == [(receipt.hold_id, cast.parent.id)]
    assert (await cast.started.get()).holds == ()


@pytest.mark.parametrize("status", ["closing", "closed"])
async def test_a_closing_or_closed_session_cannot_be_interrupted(stage, cast, status):
    """[S16]."""
    await (cast.parent.close() if status == "closing" else cast.parent.cancel())
    assert (await cast.parent.get()).status == status
    with pytest.raises(SessionNotOpen):
        await cast.parent.interrupt()


async def test_resume_releases_one_hold_by_id_and_the_interrupted_turn_is_not_replayed(stage, cast):
    """[S17]."""
    first, second = await cast.parent.interrupt(), await cast.parent.interrupt()
    await cast.running["parent"].wait()
    with pytest.raises(HoldNotFound):
        await cast.parent.resume(hold_id=new_id())
    with pytest.raises(HoldNotFound):
        await cast.child.resume(hold_id=first.hold_id)
    await cast.parent.resume(hold_id=first.hold_id)
    assert (await cast.queued.get()).status == "queued"
    await cast.parent.resume(hold_id=second.hold_id)
    assert (await cast.queued.wait()).status == "completed"
    ran = [event.turn_id for event in await stage.events(cast.parent) if event.kind == "turn.running"]
    assert ran == [cast.running["parent"].id, cast.queued.id]


async def test_close_rejects_new_turns_in_the_owned_tree_and_drains_what_can_run(stage, cast):
    """[S18]."""
    assert (await cast.parent.close()).status == "closing"
    for session in (cast.parent, cast.child):
        with pytest.raises(SessionNotOpen):
            await session.enqueue(play(nothing))
    assert await cast.sessions() == ["closing", "closing", "open"]
    following = await cast.started.enqueue(play(nothing))
    cast.gate.open()
    assert (await cast.queued.wait()).status == "completed"
    await stage.until(cast.parent, "session.closed")
    assert await cast.sessions() == ["closed", "closed", "open"]
    assert (await following.wait()).status == "completed"


async def test_close_cancels_what_a_hold_blocks_and_pending_questions(stage, cast):
    """[S18]: it never waits on a hold or an unanswered question; the Turn that asked may go on."""

    async def asks(turn, ctx):
        with pytest.raises(AskCancelled):
            await turn.ask({"prompt": "Go on?", "answer": {"type": "text"}})
        with pytest.raises(AskCancelled):
            await turn.ask({"prompt": "Really?", "answer": {"type": "text"}})
        return "went on"

    stage.runtime.person.is_away()
    asking = await stage.begin(asks)
    await stage.until(asking.session, "question.asked")
    assert (await asking.session.close()).status == "closing"
    assert (await asking.turn.wait()).result == "went on"
    await stage.until(asking.session, "session.closed")
    await cast.parent.interrupt()
    await cast.running["parent"].wait()
    await cast.running["child"].wait()
    assert (await cast.parent.close()).status == "closed"
    assert (await cast.queued.get()).status == "cancelled"


async def test_each_session_closes_once_its_work_has_settled_and_what_it_owns_has_closed(stage, cast):
    """[S18]."""
    await cast.parent.close()
    await cast.running["parent"].interrupt()
    await cast.running["parent"].wait()
    await cast.queued.wait()
    assert await cast.sessions() == ["closing", "closing", "open"], "the child works on"
    cast.gate.open()
    await stage.until(cast.parent, "session.closed")
    assert (await cast.child.get()).status == "closed"


async def test_cancel_stops_running_and_queued_turns_throughout_and_closes_at_once(stage, cast):
    """[S19]."""
    assert (await cast.parent.cancel()).status == "closed"
    assert await cast.statuses() == {"parent": "cancelled", "child": "cancelled", "queued": "cancelled", "started": "running"}
    assert await cast.sessions() == ["closed", "closed", "open"]


async def test_cancel_also_ends_a_session_that_is_closing(stage, cast):
    """[S19]."""
    assert (await cast.parent.close()).status == "closing"
    assert (await cast.parent.cancel()).status == "closed"
    assert await cast.sessions() == ["closed", "closed", "open"]


@pytest.mark.parametrize("how", ["close", "cancel", "idle"])
async def test_the_closed_event_records_how_it_closed(stage, how):
    """[S20], [S21]."""
    made = await stage.client.sessions.create(agent="briefly")
    if how == "idle":
        await stage.runtime.clock.advance("601s")
    else:
        await getattr(made.session, how)()
    ended = await stage.until(made.session, "session.closed")
    assert ended.data == {"reason": how} and (await made.session.get()).close_reason == how


async def test_ending_a_closed_and_closing_a_closing_session_changes_nothing(stage, cast):
    """[S20]."""
    await cast.parent.close()
    before = await stage.events(cast.parent)
    assert (await cast.parent.close()).status == "closing"
    assert await stage.events(cast.parent) == before
    await cast.parent.cancel()
    status = [(await getattr(cast.parent, name)()).status for name in ("close", "cancel")]
    kinds = [event.kind for event in await stage.events(cast.parent)]
    assert status == ["closed", "closed"] and kinds.count("session.closed") == 1 and kinds.count("session.cancel") == 1
