"""contract, "TurnState" and "TurnOutcome": each status with what it carries, row by row."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.stage import play

from helmr import text
from helmr.client import CancelledTurn, CompletedTurn, ExpiredTurn, FailedTurn, InterruptedTurn
from helmr.protocol.unset import UNSET
from helmr.testing import Gate

pytestmark = pytest.mark.anyio

PAYLOADS = ("result", "response", "error")


def members(state):
    """Which of the optional members a TurnState has."""
    optional = ("input", "started_at", "terminal_at", "result", "response", "error", "payload_expired_at")
    return {name for name in optional if getattr(state, name) is not UNSET}


async def responds(turn, ctx):
    await turn.respond("said")
    return {"n": 1}


async def sleeps(turn, ctx):
    await turn.respond("never seen")
    await turn.output.write("here")
    await asyncio.sleep(3600)


async def test_queued_has_its_input_and_nothing_else(stage):
    made = await stage.client.sessions.create(agent="actor")
    await made.session.interrupt()
    asked = play(responds)
    state = await (await made.session.enqueue(asked)).get()
    assert (state.status, members(state), list(state.input), state.sequence) == ("queued", {"input"}, asked, 1)


async def test_running_has_begun(stage):
    made = await stage.begin(sleeps)
    await stage.until(made.session, "turn.output")
    state = await made.turn.get()
    assert (state.status, members(state)) == ("running", {"input", "started_at"})
    await made.session.cancel()


async def test_completed_has_result_and_response(stage):
    outcome = await stage.outcome(responds)
    assert isinstance(outcome, CompletedTurn) and outcome.status == "completed" and outcome.payload_expired_at is None
    assert (outcome.result, outcome.response) == ({"n": 1}, [text("said")])
    assert members(outcome.turn) == {"input", "started_at", "terminal_at", "result", "response"}
    assert outcome.turn.created_at <= outcome.turn.started_at <= outcome.turn.terminal_at


@pytest.mark.parametrize("result", [None, 0, "", [], {}, False, 1.5, 2**60, "\0"])
async def test_any_json_is_a_result_null_too_and_without_a_response_there_is_none(stage, result):
    async def handler(turn, ctx):
        return result

    outcome = await stage.outcome(handler)
    assert outcome.result == result and type(outcome.result) is type(result) and outcome.response is None
    assert members(outcome.turn) == {"input", "started_at", "terminal_at", "result"}


async def test_completed_and_expired_has_neither(stage):
    """[S22]: `payload_expired_at` says so; the Turn keeps status and times."""
    made = await stage.begin(responds)
    await made.turn.wait()
    await made.session.close()
    await made.session.delete_data()
    outcome = await made.turn.wait()
    assert isinstance(outcome, ExpiredTurn) and outcome.status == "completed" and outcome.payload_expired_at
    assert members(outcome.turn) == {"started_at", "terminal_at", "payload_expired_at"}


@pytest.mark.parametrize(
    ("raises", "code"),
    [("in the handler", "handler_failed"), ("not in the result schema", "result_invalid"), ("unjoined", "unjoined_operations")],
)
async def test_failed_has_an_error_and_never_result_or_response(stage, raises, code):
    async def handler(turn, ctx):
        await turn.respond("never seen")
        if raises == "unjoined":
            turn.output.write("forgotten")
            return
        raise ValueError("on purpose")

    if raises == "not in the result schema":
        outcome = await (await stage.client.sessions.create(agent="typed", input={"issue": -1})).turn.wait()
    else:
        outcome = await stage.outcome(handler)
    assert isinstance(outcome, FailedTurn) and outcome.error.code == code
    assert members(outcome.turn) == {"input", "started_at", "terminal_at", "error"}


async def test_failed_past_its_deadline(stage):
    """[S12]: `max_turn_duration`; no hold."""
    made = await stage.begin(sleeps, agent="briefly")
    await stage.until(made.session, "turn.output")
    await stage.runtime.clock.advance("301s")
    outcome = await made.turn.wait()
    assert isinstance(outcome, FailedTurn) and outcome.error.code == "deadline_exceeded"
    assert (await made.session.get()).holds == ()


@pytest.mark.parametrize("by", ["turn", "session"])
async def test_interrupted_by_somebody_has_no_error_result_or_response(stage, by):
    made = await stage.begin(sleeps)
    await stage.until(made.session, "turn.output")
    await (made.turn if by == "turn" else made.session).interrupt()
    outcome = await made.turn.wait()
    assert isinstance(outcome, InterruptedTurn) and outcome.error is None
    assert members(outcome.turn) == {"input", "started_at", "terminal_at"}
    (ended,) = [event.data for event in await stage.events(made.session) if event.kind == "turn.interrupted"]
    assert ended == {"reason": f"{by}_interrupted"}


@pytest.mark.parametrize("cause", ["process_lost", "out_of_memory"])
async def test_interrupted_by_a_loss_says_so_and_is_not_replayed(stage, cause):
    starts = []

    async def handler(turn, ctx):
        starts.append(turn.id)
        await sleeps(turn, ctx)

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    await stage.runtime.lose(made.session, cause)
    outcome = await made.turn.wait()
    assert isinstance(outcome, InterruptedTurn) and outcome.error.code == cause
    assert ({"limit", "peak"} <= set(outcome.error.details)) == (cause == "out_of_memory")
    assert members(outcome.turn) == {"input", "started_at", "terminal_at", "error"}
    await stage.runtime.clock.advance("5s")
    assert (await (await made.session.enqueue(play(responds))).wait()).status == "completed"
    assert starts == [made.turn.id]


async def test_cancelled_while_running_or_queued_has_nothing(stage):
    made = await stage.begin(sleeps)
    queued = await made.session.enqueue(play(responds))
    await stage.until(made.session, "turn.output")
    await made.session.cancel()
    running, waiting = await made.turn.wait(), await queued.wait()
    assert isinstance(running, CancelledTurn) and isinstance(waiting, CancelledTurn)
    assert members(running.turn) == {"input", "started_at", "terminal_at"}
    assert members(waiting.turn) == {"input", "terminal_at"}


async def test_a_terminal_status_never_changes(stage):
    """[S11], I1."""
    gate = Gate()

    async def waits(turn, ctx):
        await gate.wait()

    made = await stage.begin(responds)
    before = (await made.turn.wait()).turn
    await made.session.enqueue(play(waits))
    await made.session.interrupt()
    await made.session.cancel()
    gate.open()
    assert await made.turn.get() == before
