"""contract, "Sending input" and "Order": enqueue beside exact send, row by row."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.stage import play

from helmr import text
from helmr.protocol.errors import MessageClosed, SessionNotOpen
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


async def nothing(turn, ctx):
    return turn.sequence


async def blocked(stage):
    """A Session whose Turn runs, and what lets it end."""
    gate = Gate()

    async def waits(turn, ctx):
        await gate.wait()

    made = await stage.begin(waits)
    await stage.until(made.session, "turn.running")
    return made, gate


async def test_enqueue_while_a_turn_runs_is_a_new_turn_at_the_end_of_the_queue(stage):
    """[S6], [S8]."""
    made, gate = await blocked(stage)
    turns = [await made.session.enqueue(play(nothing)) for _ in range(3)]
    assert [turn.sequence for turn in turns] == [2, 3, 4]
    assert {(await turn.get()).status for turn in turns} == {"queued"}
    gate.open()
    assert [(await turn.wait()).result for turn in turns] == [2, 3, 4]
    running = [event.turn_id for event in await stage.events(made.session) if event.kind == "turn.running"]
    assert running == [made.turn.id, *(turn.id for turn in turns)]


@pytest.mark.ud("UD-25")
async def test_enqueue_while_held_waits_until_the_session_can_process_it(stage):
    """[S6], [S17]."""
    made = await stage.client.sessions.create(agent="actor")
    hold = (await made.session.interrupt()).hold_id
    turn = await made.session.enqueue(play(nothing))
    assert (await turn.wait(timeout="50ms")).status == "timeout" and (await turn.get()).status == "queued"
    await made.session.resume(hold_id=hold)
    assert (await turn.wait()).status == "completed"


async def test_enqueue_is_refused_once_closing(stage):
    """[S6], [S18]."""
    made, gate = await blocked(stage)
    await made.session.close()
    with pytest.raises(SessionNotOpen):
        await made.session.enqueue(play(nothing))
    gate.open()
    await made.turn.wait()


@pytest.mark.ud("UD-06")
@pytest.mark.parametrize("target", ["without a handler", "queued", "settled", "settling", "stopping"])
async def test_exact_send_to_a_turn_that_takes_none_is_refused_not_redirected(stage, target):
    """[S7]."""
    listening, leave, hang = Gate(), Gate(), Gate()

    async def handler(turn, ctx):
        if target != "without a handler":
            await turn.on_message(lambda message: leave.wait())
        await turn.output.write("here")
        listening.open()
        if target == "stopping":
            turn.on_cancel(lambda reason: hang.wait())
        if target != "settling":
            await leave.wait()

    made = await stage.begin(handler)
    later = await made.session.enqueue(play(nothing))
    await stage.until(made.session, "turn.output")
    await listening.wait()
    to = made.turn
    if target == "queued":
        to = later
    elif target == "settled":
        leave.open()
        await made.turn.wait()
    elif target == "stopping":
        await made.turn.interrupt()
    elif target == "settling":
        async with asyncio.timeout(5):
            while True:  # until the handler has returned, messages are taken; the first of them is still being handled then
                try:
                    await to.send([text("before")])
                except MessageClosed:
                    break
    before = [event.kind for event in await stage.events(made.session)].count("message.admitted")
    with pytest.raises(MessageClosed):
        await to.send([text("lost")])
    assert [event.kind for event in await stage.events(made.session)].count("message.admitted") == before
    leave.open()
    hang.open()
    await made.turn.wait()
    assert (await later.wait()).result == 2


@pytest.mark.ud("UD-08")
async def test_accepting_a_message_does_not_mean_that_it_was_handled(stage):
    """[S7]: its delivery is in the events; started messages are finished before the Turn ends, unstarted ones rejected."""
    taken, leave = Gate(), Gate()

    async def handler(turn, ctx):
        async def take(message):
            taken.open()
            await leave.wait()

        await turn.on_message(take)
        await turn.output.write("listening")
        await taken.wait()

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    first = await made.turn.send([text("one")])
    await taken.wait()
    assert first.status == "accepted"
    kinds = {event.kind for event in await stage.events(made.session)}
    assert not kinds & {"message.delivered", "message.rejected"}
    leave.open()
    await made.turn.wait()
    (delivered,) = [event.data for event in await stage.events(made.session) if event.kind == "message.delivered"]
    assert delivered == {"message_id": first.id}


@pytest.mark.ud("UD-62")
async def test_a_message_never_answers_a_question(stage):
    """[Q3]."""
    answered = Gate()

    async def handler(turn, ctx):
        await turn.on_message(lambda message: answered.open())
        asking = turn.ask({"prompt": "Go on?", "answer": {"type": "text"}})
        await answered.wait()
        await turn.output.write("heard")
        return (await asking).answer

    stage.runtime.person.is_away()
    made = await stage.begin(handler)
    asked = await stage.until(made.session, "question.asked")
    await made.turn.send([text("yes")])
    await stage.until(made.session, "turn.output")
    assert (await made.turn.asks.get(asked.data["question_id"])).status == "pending"
    await made.session.cancel()


async def test_a_failed_turn_does_not_block_the_next_and_the_session_stays_open(stage):
    """[S8]."""

    async def fails(turn, ctx):
        raise ValueError("on purpose")

    made = await stage.begin(fails)
    following = await made.session.enqueue(play(nothing))
    assert ((await made.turn.wait()).status, (await following.wait()).status) == ("failed", "completed")
    assert (await made.session.get()).status == "open"


async def test_several_sessions_share_a_computer_and_keep_their_histories(stage):
    made = await stage.begin(nothing)
    await made.turn.wait()
    computer = (await made.session.get()).computer_id
    other = await stage.begin(nothing, computer={"id": computer})
    assert (await other.turn.wait()).result == 1
    assert (await other.session.get()).computer_id == computer
    assert {event.session_id for event in await stage.events(other.session)} == {other.session.id}
