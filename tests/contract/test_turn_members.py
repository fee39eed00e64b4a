"""contract, "Turn": the table of its members, row by row."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.stage import play

from helmr import MessageRejected, text
from helmr.protocol.errors import (
    MessageHandlerRegistered,
    RegistrationClosed,
    ResponseAlreadyStaged,
    RootSessionRequired,
    TurnCancelled,
    TurnSettling,
)
from helmr.protocol.questions import text_answer
from helmr.protocol.unset import UNSET
from helmr.sdk.signal import AbortController
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


async def test_id_sequence_and_created_at_are_those_of_the_admission(stage):
    async def handler(turn, ctx):
        return [turn.id, turn.sequence, turn.created_at]

    made = await stage.begin(handler)
    outcome = await made.turn.wait()
    assert outcome.result == [made.turn.id, 1, outcome.turn.created_at]
    queued = (await stage.events(made.session))[0]
    assert (queued.kind, queued.turn_id, queued.data["sequence"]) == ("turn.queued", made.turn.id, 1)


async def test_input_is_the_text_parts_of_an_agent_without_a_schema(stage):
    async def handler(turn, ctx):
        return turn.input[1:]

    assert (await stage.outcome(handler, "a", "b")).result == [text("a"), text("b")]


async def test_input_is_what_the_schema_made_of_it(stage):
    """It is validated after `init`; the persisted input stays what was sent."""
    made = await stage.client.sessions.create(agent="typed", input={"issue": 7})
    outcome = await made.turn.wait()
    assert outcome.result == {"issue": 7} == outcome.turn.input
    refused = await (await stage.client.sessions.create(agent="typed", input={"issue": "x"})).turn.wait()
    assert (refused.status, refused.error.code) == ("failed", "input_invalid")


async def test_source_says_where_the_input_came_from(stage):
    async def handler(turn, ctx):
        return turn.source.kind

    assert (await stage.outcome(handler)).result == "api_key"


@pytest.mark.parametrize(
    ("ends", "reason"), [("interrupt", "turn_interrupted"), ("session", "session_interrupted"), ("cancel", "cancelled"), ("fail", "failed")]
)
async def test_signal_aborts_when_the_turn_is_cancelled_interrupted_or_fails(stage, ends, reason):
    seen, aborted, started = [], Gate(), Gate()

    async def handler(turn, ctx):
        assert not turn.signal.aborted and turn.signal.reason is None

        async def watch():
            seen.append(await turn.signal.wait())
            aborted.open()

        watching = asyncio.create_task(watch())
        turn.on_cancel(lambda _: watching)
        started.open()
        if ends == "fail":
            raise ValueError("on purpose")
        await asyncio.sleep(3600)

    made = await stage.begin(handler)
    await started.wait()
    if ends == "interrupt":
        await made.turn.interrupt()
    elif ends == "session":
        await made.session.interrupt()
    elif ends == "cancel":
        await made.session.cancel()
    await aborted.wait()
    assert seen == [reason]
    assert (await made.turn.wait()).status == {"cancel": "cancelled", "fail": "failed"}.get(ends, "interrupted")


async def test_on_cancel_registers_work_that_is_joined_beside_the_handler_and_never_runs_on_success(stage):
    ran, begun, finish = [], Gate(), Gate()

    async def stopped(turn, ctx):
        async def clean_up(reason):
            begun.open()
            await finish.wait()
            ran.append(reason)

        assert turn.on_cancel(clean_up) is None
        await turn.output.write("ready")
        await asyncio.sleep(3600)

    made = await stage.begin(stopped)
    await stage.until(made.session, "turn.output")
    await made.turn.interrupt()
    await begun.wait()
    assert (await made.turn.get()).status == "running", "the cleanup is joined before the Turn ends"
    finish.open()
    assert (await made.turn.wait()).status == "interrupted" and ran == ["turn_interrupted"]
    kept = []

    async def succeeds(turn, ctx):
        turn.on_cancel(ran.append)
        kept.append(turn)

    await stage.outcome(succeeds)
    assert ran == ["turn_interrupted"]
    with pytest.raises(RegistrationClosed):
        kept[0].on_cancel(ran.append)


async def test_output_write_appends_content_or_a_string_and_gives_its_sequence(stage):
    async def handler(turn, ctx):
        first = await turn.output.write("text")
        second = await turn.output.write([{"type": "json", "value": {"n": 1}}])
        return [first.sequence, second.sequence]

    made = await stage.begin(handler)
    result = (await made.turn.wait()).result
    outputs = [(event.sequence, event.data) for event in await stage.events(made.session) if event.kind == "turn.output"]
    assert outputs == [(result[0], [text("text")]), (result[1], [{"type": "json", "value": {"n": 1}}])]


async def test_output_pipe_appends_each_item_in_order_and_ends_with_the_iterable(stage):
    async def handler(turn, ctx):
        async def values():
            for number in range(300):
                yield str(number)

        return await turn.output.pipe(values())

    made = await stage.begin(handler)
    assert (await made.turn.wait()).result is None
    outputs = [event.data for event in await stage.events(made.session) if event.kind == "turn.output"]
    assert outputs == [[text(str(number))] for number in range(300)]


async def test_output_pipe_stops_with_its_signal_and_keeps_what_was_taken(stage):
    async def handler(turn, ctx):
        controller = AbortController()

        async def values():
            yield "one"
            yield "two"
            controller.abort("cancelled")
            await asyncio.sleep(3600)

        with pytest.raises(TurnCancelled):
            await turn.output.pipe(values(), signal=controller.signal)
        return "went on"

    made = await stage.begin(handler)
    assert (await made.turn.wait()).result == "went on"
    assert [event.data for event in await stage.events(made.session) if event.kind == "turn.output"] == [[text("one")], [text("two")]]


async def test_respond_stages_one_response_that_success_publishes(stage):
    """[S10]."""

    async def twice(turn, ctx):
        await turn.respond("first")
        with pytest.raises(ResponseAlreadyStaged):
            await turn.respond("second")

    assert (await stage.outcome(twice)).response == [text("first")]

    async def fails(turn, ctx):
        await turn.respond("never seen")
        raise ValueError("on purpose")

    failed = await stage.outcome(fails)
    assert failed.status == "failed" and failed.turn.response is UNSET


async def test_on_message_hands_over_messages_one_at_a_time_in_order_to_one_handler(stage):
    got, at_once, enough = [], [0, 0], Gate()

    async def handler(turn, ctx):
        async def take(message):
            at_once[0] += 1
            at_once[1] = max(at_once)
            await asyncio.sleep(0)
            got.append((message.id, message.content, message.source.kind))
            at_once[0] -= 1
            if message.content == [text("last")]:
                enough.open()

        await turn.on_message(take)
        with pytest.raises(MessageHandlerRegistered):
            await turn.on_message(take)
        await turn.output.write("listening")
        await enough.wait()

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    ids = [(await made.turn.send([text(said)])).id for said in ("one", "two", "last")]
    assert (await made.turn.wait()).status == "completed"
    assert got == [(ids[0], [text("one")], "api_key"), (ids[1], [text("two")], "api_key"), (ids[2], [text("last")], "api_key")]
    assert at_once[1] == 1


async def test_ask_asks_a_person_and_gives_the_answer(stage):
    """[Q1], [Q5]."""

    async def handler(turn, ctx):
        said = await turn.ask({"prompt": "Go on?", "answer": {"type": "text"}})
        return [said.answer, said.responded_by.kind]

    stage.runtime.person.is_away()
    made = await stage.begin(handler)
    asked = await stage.until(made.session, "question.asked")
    await made.turn.asks.respond(asked.data["question_id"], text_answer("yes"))
    assert (await made.turn.wait()).result == [{"type": "text", "text": "yes"}, "api_key"]


async def test_only_a_root_session_asks(stage):
    """[Q1]."""

    async def handler(turn, ctx):
        with pytest.raises(RootSessionRequired):
            await turn.ask({"prompt": "Go on?", "answer": {"type": "text"}})
        return "refused"

    parent = await stage.client.sessions.create(agent="actor")
    child = stage.by("spawn", parent.session.id, agent="actor", input=play(handler))
    ref = stage.client.sessions.ref(child["session"]["id"]).turns.ref(child["turn"]["id"])
    assert (await ref.wait()).result == "refused"


async def test_what_is_started_and_not_awaited_fails_the_turn(stage):
    """[S10]."""

    async def handler(turn, ctx):
        turn.output.write("forgotten")
        return "done"

    outcome = await stage.outcome(handler)
    assert (outcome.status, outcome.error.code) == ("failed", "unjoined_operations")


async def test_responses_and_questions_are_not_admitted_after_the_handler_returned(stage):
    found, taken, release = [], Gate(), Gate()

    async def handler(turn, ctx):
        async def late(message):
            taken.open()
            await release.wait()
            for operation in (lambda: turn.respond("late"), lambda: turn.ask({"prompt": "late?", "answer": {"type": "text"}})):
                try:
                    await operation()
                except TurnSettling as error:
                    found.append(error.code)
            await turn.output.write("still stored")

        await turn.on_message(late)
        await turn.output.write("listening")
        await taken.wait()
        asyncio.get_running_loop().call_soon(release.open)

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    await made.turn.send([text("begin")])
    outcome = await made.turn.wait()
    assert (outcome.status, outcome.response, found) == ("completed", None, ["turn_settling", "turn_settling"])
    kinds = [event.kind for event in await stage.events(made.session)]
    assert kinds[-3:] == ["turn.output", "message.delivered", "turn.completed"]


async def test_a_message_that_is_rejected_had_no_effect_and_the_turn_goes_on(stage):
    """contract, "MessageRejected": recognised by its mark, also from another copy of the package."""

    class Copy(Exception):
        helmr_message_rejected = True

    enough = Gate()

    async def handler(turn, ctx):
        async def take(message):
            said = message.content[0]["text"]
            if said == "enough":
                enough.open()
                return
            raise (MessageRejected if said == "ours" else Copy)("not now")

        await turn.on_message(take)
        await turn.output.write("listening")
        await enough.wait()
        return "went on"

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    sent = [(await made.turn.send([text(said)])).id for said in ("ours", "copy", "enough")]
    assert (await made.turn.wait()).result == "went on"
    rejected = [event.data for event in await stage.events(made.session) if event.kind == "message.rejected"]
    facts = {"reason": "message_rejected", "delivery": "not_delivered", "detail": "not now"}
    assert rejected == [{"message_id": each, **facts} for each in sent[:2]]


async def test_any_other_error_of_a_message_handler_fails_the_turn(stage):
    """contract, "MessageRejected"."""

    async def handler(turn, ctx):
        async def take(message):
            raise ValueError("on purpose")

        await turn.on_message(take)
        await turn.output.write("listening")
        await asyncio.sleep(3600)

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    sent = await made.turn.send([text("go")])
    outcome = await made.turn.wait()
    assert (outcome.status, outcome.error.code) == ("failed", "message_handler_failed")
    (rejected,) = [event.data for event in await stage.events(made.session) if event.kind == "message.rejected"]
    facts = {"reason": "callback_failed", "delivery": "uncertain", "detail": "ValueError: on purpose"}
    assert rejected == {"message_id": sent.id, **facts}
