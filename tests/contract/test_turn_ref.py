"""contract, "TurnRef": the table of its members, row by row."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.stage import play

from helmr import text
from helmr.client import TurnSettled, TurnWaitTimeout
from helmr.protocol.errors import MessageClosed, TurnNotFound, TurnNotRunning, TurnStopping
from helmr.protocol.ids import new_id
from helmr.protocol.questions import text_answer
from helmr.protocol.shapes import MessageReceipt, TurnInterruptReceipt, TurnState
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


async def nothing(turn, ctx):
    return "done"


async def waiting(stage):
    """A Session with a running Turn, and what lets it end."""
    gate = Gate()

    async def waits(turn, ctx):
        await turn.on_message(lambda message: None)
        await turn.output.write("here")
        await gate.wait()
        return "done"

    made = await stage.begin(waits)
    await stage.until(made.session, "turn.output")
    return made, gate


async def test_id_and_session_id(stage):
    made = await stage.begin(nothing)
    assert (made.turn.session_id, (await made.turn.get()).id) == (made.session.id, made.turn.id)


async def test_get_is_the_turn_now_and_an_unknown_or_foreign_one_is_not_found(stage):
    made, other = await stage.begin(nothing), await stage.begin(nothing)
    await made.turn.wait()
    state = await made.turn.get()
    assert isinstance(state, TurnState) and (state.status, state.session_id) == ("completed", made.session.id)
    for unknown in (new_id(), other.turn.id, "nonsense"):
        with pytest.raises(TurnNotFound):
            await made.session.turns.ref(unknown).get()


async def test_wait_resolves_when_the_turn_settles(stage):
    made, gate = await waiting(stage)
    pending = asyncio.create_task(made.turn.wait())
    assert (await made.turn.get()).status == "running" and not pending.done()
    gate.open()
    assert (await pending).result == "done" == (await made.turn.wait()).result


async def test_a_timed_wait_is_timeout_or_settled_and_never_cancels(stage):
    made, gate = await waiting(stage)
    timed_out = await made.turn.wait(timeout="20ms")
    assert isinstance(timed_out, TurnWaitTimeout) and timed_out.status == "timeout"
    assert (await made.turn.get()).status == "running"
    gate.open()
    settled = await made.turn.wait(timeout="20s")
    assert isinstance(settled, TurnSettled) and (settled.status, settled.outcome.result) == ("settled", "done")


async def test_a_wait_that_is_given_up_cancels_nothing(stage):
    made, gate = await waiting(stage)
    pending = asyncio.create_task(made.turn.wait())
    await asyncio.sleep(0)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert (await made.turn.get()).status == "running"
    gate.open()
    assert (await made.turn.wait()).status == "completed"


async def test_send_gives_a_receipt_and_once_under_one_key(stage):
    made, gate = await waiting(stage)
    receipt = await made.turn.send([text("hello")], idempotency_key="once")
    assert isinstance(receipt, MessageReceipt) and receipt.status == "accepted"
    assert await made.turn.send([text("hello")], idempotency_key="once") == receipt
    gate.open()
    await made.turn.wait()
    assert [event.kind for event in await stage.events(made.session)].count("message.admitted") == 1
    with pytest.raises(MessageClosed):
        await made.turn.send([text("late")])


async def test_interrupt_stops_this_running_turn_without_a_hold(stage):
    made, _ = await waiting(stage)
    queued = await made.session.enqueue(play(nothing))
    with pytest.raises(TurnNotRunning):
        await queued.interrupt()
    receipt = await made.turn.interrupt(idempotency_key="once")
    assert isinstance(receipt, TurnInterruptReceipt)
    assert (receipt.session_id, receipt.turn_id, receipt.status) == (made.session.id, made.turn.id, "accepted")
    assert await made.turn.interrupt(idempotency_key="once") == receipt
    assert (await made.turn.wait()).status == "interrupted"
    with pytest.raises(TurnNotRunning):
        await made.turn.interrupt()
    assert (await queued.wait()).status == "completed" and (await made.session.get()).holds == ()


async def test_interrupt_of_a_turn_that_is_stopping_is_refused(stage):
    hang, begun = Gate(), Gate()

    async def handler(turn, ctx):
        async def clean_up(reason):
            begun.open()
            await hang.wait()

        turn.on_cancel(clean_up)
        await turn.output.write("here")
        await asyncio.sleep(3600)

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    await made.turn.interrupt()
    await begun.wait()
    with pytest.raises(TurnStopping):
        await made.turn.interrupt()
    hang.open()
    assert (await made.turn.wait()).status == "interrupted"


async def test_asks_lists_gets_and_responds(stage):
    async def handler(turn, ctx):
        return (await turn.ask({"prompt": "Go on?", "answer": {"type": "text"}})).answer

    stage.runtime.person.is_away()
    made = await stage.begin(handler)
    asked = (await stage.until(made.session, "question.asked")).data["question_id"]
    (listed,) = (await made.turn.asks.list()).items
    assert (listed.id, listed.status, listed) == (asked, "pending", await made.turn.asks.get(asked))
    receipt = await made.turn.asks.respond(asked, text_answer("yes"), response_id="r")
    assert receipt == await made.turn.asks.respond(asked, text_answer("yes"), response_id="r")
    assert (await made.turn.wait()).result == text_answer("yes")
    assert (await made.turn.asks.get(asked)).status == "responded"
