"""contract, "Content rules": what is taken where, and the limits, row by row."""

from __future__ import annotations

import aiohttp
import pytest
from tests.contract.stage import play

from helmr import json_part, text
from helmr.protocol import jsontext
from helmr.protocol.errors import (
    ContentInvalid,
    ContentKindUnsupported,
    ContentLimitExceeded,
    InputEmpty,
    InvalidValue,
)
from helmr.protocol.questions import text_answer
from helmr.testing import Gate

pytestmark = pytest.mark.anyio

KIB = 1024
LIMIT = 256 * KIB
FRAME = len(b'[{"type":"text","text":""}]')
"""What one text part takes beside its text."""


async def nothing(turn, ctx):
    return turn.input[1:]


# --- the rows of shapes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [["a"], ["a", "b", ""], ["\0 \U0001f600 é"]])
async def test_text_input_is_a_list_of_text_parts(stage, parts):
    assert (await stage.outcome(nothing, *parts)).result == [text(part) for part in parts]


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        ("a str", TypeError),
        ([], InputEmpty),
        ([text("")], InputEmpty),
        (None, InputEmpty),
        ([json_part(1)], ContentKindUnsupported),
        ([{"type": "file", "path": "/etc/passwd"}], ContentKindUnsupported),
        ({"type": "text", "text": "no list"}, ContentKindUnsupported),
        ([{"type": "text", "text": "x", "more": 1}], ContentKindUnsupported),
    ],
)
async def test_text_input_has_no_string_shorthand_and_no_other_parts(stage, refused, error):
    with pytest.raises(error):
        await stage.client.sessions.create(agent="actor", input=refused)
    made = await stage.client.sessions.create(agent="actor")
    with pytest.raises(error):
        await made.session.enqueue(refused)


@pytest.mark.parametrize(("refused", "error"), [("a str", TypeError), ([], InputEmpty), ([json_part(1)], ContentKindUnsupported)])
async def test_a_live_message_is_text_parts_like_an_input(stage, refused, error):
    enough = Gate()

    async def handler(turn, ctx):
        await turn.on_message(lambda message: enough.open())
        await turn.output.write("listening")
        await enough.wait()

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    with pytest.raises(error):
        await made.turn.send(refused)
    await made.turn.send([text("well")])
    assert (await made.turn.wait()).status == "completed"


@pytest.mark.parametrize("where", ["write", "pipe", "respond"])
@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("short", [text("short")]),
        ([text("a"), text("b"), json_part(1), text("c"), text("d")], [text("ab"), json_part(1), text("cd")]),
        ([json_part([1]), json_part([1])], [json_part([1]), json_part([1])]),
        ("", [text("")]),
        ([], []),
    ],
)
async def test_human_content_is_parts_or_a_string_and_adjacent_texts_concatenate(stage, where, value, stored):
    async def handler(turn, ctx):
        if where == "write":
            await turn.output.write(value)
        elif where == "pipe":
            await turn.output.pipe([value])
        else:
            await turn.respond(value)

    made = await stage.begin(handler)
    outcome = await made.turn.wait()
    outputs = [event.data for event in await stage.events(made.session) if event.kind == "turn.output"]
    assert (outcome.response, outputs) == ((stored, []) if where == "respond" else (None, [stored]))


async def test_a_prompt_is_parts_or_a_string(stage):
    async def handler(turn, ctx):
        for prompt in ("a string", [text("parts"), json_part({"n": 1})]):
            await turn.ask({"prompt": prompt, "answer": {"type": "text"}})

    stage.runtime.person.is_away()
    made = await stage.begin(handler)
    prompts = []
    for count in (1, 2):
        asked = await stage.until(made.session, "question.asked", count)
        await made.turn.asks.respond(asked.data["question_id"], text_answer("yes"))
        prompts.append(list((await made.turn.asks.get(asked.data["question_id"])).question["prompt"]))
    assert (await made.turn.wait()).status == "completed"
    assert prompts == [[text("a string")], [text("parts"), json_part({"n": 1})]]


@pytest.mark.parametrize(
    "refused",
    [1, None, {"type": "text"}, [{"type": "file", "path": "x"}], [text("x") | {"more": 1}], [json_part(1) | {"value": float("nan")}]],
)
async def test_other_parts_are_refused_and_the_turn_goes_on(stage, refused):
    """File parts are not supported."""

    async def handler(turn, ctx):
        for operation in (turn.output.write, turn.respond):
            with pytest.raises(ContentInvalid):
                await operation(refused)
        return "went on"

    assert (await stage.outcome(handler)).result == "went on"


@pytest.mark.parametrize("response", ["", []])
async def test_an_empty_response_is_a_response_and_no_call_is_none(stage, response):
    async def responds(turn, ctx):
        await turn.respond(response)

    async def silent(turn, ctx):
        pass

    assert (await stage.outcome(responds)).response == ([text("")] if response == "" else [])
    assert (await stage.outcome(silent)).response is None


# --- the rows of limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["write", "respond", "prompt"])
async def test_one_content_value_is_at_most_256_kib_encoded(stage, where):
    """Exactly at the limit is fine, one byte over is refused, and the Turn goes on."""

    async def handler(turn, ctx):
        async def use(length):
            value = "x" * length
            if where == "write":
                await turn.output.write(value)
            elif where == "respond":
                await turn.respond(value)
            else:
                await turn.ask({"prompt": value, "answer": {"type": "text"}})

        with pytest.raises(ContentLimitExceeded) as refused:
            await use(LIMIT - FRAME + 1)
        assert not refused.value.retryable
        if where != "prompt":
            await use(LIMIT - FRAME)
        return "went on"

    assert (await stage.outcome(handler)).result == "went on"


@pytest.mark.parametrize("where", ["write", "respond", "input", "message"])
async def test_one_content_value_has_at_most_64_parts_as_sent(stage, where):
    parts = [text("x")] * 65

    async def handler(turn, ctx):
        operation = turn.output.write if where == "write" else turn.respond
        with pytest.raises(ContentLimitExceeded):
            await operation(parts)
        await operation(parts[1:])

    async def listens(turn, ctx):
        enough = Gate()
        await turn.on_message(lambda message: enough.open())
        await turn.output.write("listening")
        await enough.wait()

    if where == "input":
        with pytest.raises(ContentLimitExceeded):
            await stage.begin(nothing, *["x"] * 64)
        assert len((await stage.outcome(nothing, *["x"] * 63)).result) == 63
    elif where == "message":
        made = await stage.begin(listens)
        await stage.until(made.session, "turn.output")
        with pytest.raises(ContentLimitExceeded):
            await made.turn.send(parts)
        await made.turn.send(parts[1:])
        assert (await made.turn.wait()).status == "completed"
    else:
        assert (await stage.outcome(handler)).status == "completed"


async def test_output_and_questions_of_one_turn_are_at_most_8_mib_together(stage):
    """Cumulative, to the byte; the response has its own budget."""

    async def handler(turn, ctx):
        for _ in range(31):
            await turn.output.write("x" * (LIMIT - FRAME))
        left = LIMIT
        with pytest.raises(ContentLimitExceeded):
            await turn.output.write("x" * (left - FRAME - 1000))
            await turn.output.write("x" * (1000 - FRAME + 1))
        await turn.output.write("x" * (1000 - FRAME))
        with pytest.raises(ContentLimitExceeded):
            await turn.output.write("")
        with pytest.raises(ContentLimitExceeded):
            await turn.ask({"prompt": "?", "answer": {"type": "text"}})
        await turn.respond("y" * (LIMIT - FRAME))
        return "went on"

    outcome = await stage.outcome(handler)
    assert outcome.result == "went on" and len(outcome.response[0]["text"]) == LIMIT - FRAME


async def test_an_input_is_at_most_256_kib(stage):
    """[S1]: to the byte, of an Agent with a schema and of a text Agent."""
    made = await stage.client.sessions.create(agent="typed")
    fits = {"issue": 1, "pad": "x" * (LIMIT - len(b'{"issue":1,"pad":""}'))}
    assert (await (await made.session.enqueue(fits)).wait()).status == "completed"
    with pytest.raises(ContentLimitExceeded):
        await made.session.enqueue({**fits, "pad": fits["pad"] + "x"})

    async def handler(turn, ctx):
        return len(turn.input[1]["text"])

    parts = play(handler, "")
    room = LIMIT - len(jsontext.dumps(parts))
    parts[1] = text("x" * room)
    assert (await (await stage.client.sessions.create(agent="actor", input=parts)).turn.wait()).result == room
    parts[1] = text("x" * (room + 1))
    with pytest.raises(ContentLimitExceeded):
        await stage.client.sessions.create(agent="actor", input=parts)


async def test_a_result_is_at_most_256_kib(stage):
    """[S10]: exactly at the limit is fine, one byte over fails `result_too_large`."""

    async def handler(turn, ctx):
        return "x" * int(turn.input[1]["text"])

    assert len((await stage.outcome(handler, str(LIMIT - 2))).result) == LIMIT - 2
    over = await stage.outcome(handler, str(LIMIT - 1))
    assert (over.status, over.error.code) == ("failed", "result_too_large")


async def test_a_string_as_message_is_refused_by_the_server_too(stage):
    """The client refuses it before; another client's is `invalid_value`."""
    made = await stage.client.sessions.create(agent="actor")
    headers = {"Authorization": f"Bearer {stage.runtime.api_key}"}
    path = f"/v1/sessions/{made.session.id}/turns"
    async with aiohttp.ClientSession(stage.runtime.url, headers=headers) as http, http.post(path, json={"input": "a str"}) as reply:
        assert (reply.status, (await reply.json())["code"]) == (422, InvalidValue.code)
