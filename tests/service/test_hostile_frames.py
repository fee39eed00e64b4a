"""JSON that a hostile guest frames by hand is stored as every reader can read it, or ends its process. I4, [E1], [E6]."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest
from tests.service.scripted import House, Process, house

from helmr.protocol import frames, jsontext
from helmr.protocol.limits import CONTENT_BYTES, CONTENT_PARTS, JSON_DEPTH, RESULT_BYTES

pytestmark = pytest.mark.anyio


def say_raw(process: Process, body: bytes) -> int:
    """A numbered frame, byte by byte."""
    process.op += 1
    process.kept.append((process.op, body))
    process.host.up(process.slot, frames.encode(process.channel, process.op, body))
    return process.op


async def running(h: House) -> tuple[str, str, Process]:
    session, process = await h.warm()
    turn = (await h.enqueue(session))["id"]
    await process.began(turn)
    return session, turn, process


async def next_process(h: House, session: str) -> Process:
    """The Session's next process, without its back-off [S14]."""
    async with h.database.connection() as connection:
        await connection.execute("UPDATE sessions SET retry_at = now() WHERE id = $1", session)
    h.plane.dispatcher.place(session)
    return await h.host.next_process()


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


SPACED = {
    "line feeds": b'[\n\n{"type":"text",\n"text":"a"}]',
    "returns": b'[\r{"type":"text","text":"a"}\r\n\r\n]',
    "blanks": b' [ { "type" : "text" , "text" : "a" } ] ',
    "an end of a stream": b'[{"type":"text"\n\n,"text":"a"}\n\n]',
    "within a JSON part": b'[{"type":"json","value":{"a":\n\n1}},{"type":"text","text":"a"}]',
    "escapes": b'[{"t\\u0079pe":"text","text":"\\u0061"}]',
}


@pytest.mark.parametrize("content", SPACED.values(), ids=SPACED)
async def test_output_of_odd_spacing_is_one_line_of_the_stream(database: str, tmp_path: Any, content: bytes) -> None:
    """[E4]: an event is one `data:` line, whatever line ends its guest put between the parts."""
    async with house(database, tmp_path) as h:
        session, turn, process = await running(h)
        say_raw(process, b'{"t":"turn.output","turn":"%b","content":%b}' % (turn.encode(), content))
        say_raw(process, b'{"t":"turn.settled","turn":"%b","status":"completed","result":{"a":\n\n[1,\r2]}}' % turn.encode())
        state = await h.turn(session, turn)
        assert (state["status"], state["result"]) == ("completed", {"a": [1, 2]})
        async with aclosing(h.plane.events.follow(h.principal, session, 0)) as batches:
            bodies = [event.body for event in await anext(batches)]
        assert len(bodies) > 5
        assert not any(b"\n" in body or b"\r" in body for body in bodies)
        (output,) = [event for event in await h.events(session) if event["kind"] == "turn.output"]
        assert output["data"] == json.loads(content)


BROKEN = {
    "a part that names its text twice": b'[{"type":"text","text":"a","text":"b"}]',
    "a part that names its kind twice": b'[{"type":"text","type":"json","value":1}]',
    "a value with a name twice": b'[{"type":"json","value":{"a":1,"a":2}}]',
    "deeper than JSON may be": b'[{"type":"json","value":%b}]' % nested(JSON_DEPTH + 1),
    "very deep": b'[{"type":"json","value":%b}]' % nested(100_000),
    "a number without end": b'[{"type":"json","value":1e400}]',
    "five thousand digits": b'[{"type":"json","value":%b}]' % (b"9" * 5000),
    "no number": b'[{"type":"json","value":NaN}]',
    "half a character": b'[{"type":"text","text":"\\ud83d"}]',
    "half a character in JSON": b'[{"type":"json","value":"\\ude00"}]',
    "no UTF-8": b'[{"type":"text","text":"\xff"}]',
    "no content": b'"a"',
    "an unknown part": b'[{"type":"html","html":"a"}]',
    "a member too many": b'[{"type":"text","text":"a","id":1}]',
    "a part too many": b"[%b]" % b",".join([b'{"type":"text","text":""}'] * (CONTENT_PARTS + 1)),
    "a byte too many": jsontext.dumps([{"type": "text", "text": "x" * (CONTENT_BYTES - 26)}]),
    "a mark of byte order": b'\xef\xbb\xbf[{"type":"text","text":"a"}]',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
async def test_output_that_a_reader_could_not_read_ends_its_process_and_nothing_else(database: str, tmp_path: Any, content: bytes) -> None:
    """Our own guest checks before it sends: who sends this is no guest of ours. The Session goes on with another process [S14]."""
    async with house(database, tmp_path) as h:
        session, turn, process = await running(h)
        say_raw(process, b'{"t":"turn.output","turn":"%b","content":%b}' % (turn.encode(), content))
        state = await h.turn(session, turn)
        assert (state["status"], state["error"]["code"]) == ("interrupted", "process_lost")
        assert "turn.output" not in await h.kinds(session)
        following = (await h.enqueue(session))["id"]
        again = await next_process(h, session)
        await again.began(following)
        again.settle(following)
        assert (await h.turn(session, following))["status"] == "completed"


BROKEN_RESULTS = {
    "a name twice": b'{"a":1,"a":2}',
    "too deep": nested(JSON_DEPTH + 1),
    "very deep": nested(100_000),
    "no finite number": b"-1e999",
    "five thousand digits": b"-" + b"9" * 5000,
    "half a character": b'["\\udc00"]',
    "a byte too many": b'"%b"' % (b"x" * (RESULT_BYTES - 1)),
    "two values": b"1 2",
}


@pytest.mark.parametrize("result", BROKEN_RESULTS.values(), ids=BROKEN_RESULTS)
async def test_a_result_that_a_reader_could_not_read_is_not_stored(database: str, tmp_path: Any, result: bytes) -> None:
    """The pages of Turns stay readable [S22], whatever a guest says."""
    async with house(database, tmp_path) as h:
        session, turn, process = await running(h)
        say_raw(process, b'{"t":"turn.settled","turn":"%b","status":"completed","result":%b}' % (turn.encode(), result))
        state = await h.turn(session, turn)
        assert (state["status"], state["error"]["code"]) == ("interrupted", "process_lost")
        assert len((await h.plane.turns.list(h.principal, session, None, 50)).items) == 2


async def test_values_at_the_limits_of_depth_and_size_are_stored_and_listed(database: str, tmp_path: Any) -> None:
    """[E6], [S10]: at the limit is fine."""
    async with house(database, tmp_path) as h:
        session, turn, process = await running(h)
        data = jsontext.dumps([{"type": "text", "text": "é" * (CONTENT_BYTES // 2 - 14) + "x"}])
        assert len(data) == CONTENT_BYTES
        say_raw(process, b'{"t":"turn.output","turn":"%b","content":%b}' % (turn.encode(), data))
        say_raw(
            process, b'{"t":"turn.output","turn":"%b","content":[{"type":"json","value":%b}]}' % (turn.encode(), nested(JSON_DEPTH - 2))
        )
        say_raw(process, b'{"t":"turn.settled","turn":"%b","status":"completed","result":%b}' % (turn.encode(), nested(JSON_DEPTH)))
        assert (await h.turn(session, turn))["status"] == "completed"
        assert [event["kind"] for event in await h.events(session)][-3:] == ["turn.output", "turn.output", "turn.completed"]
        listed = (await h.plane.turns.list(h.principal, session, None, 50)).items
        assert jsontext.dumps(listed[1].result) == nested(JSON_DEPTH)


@pytest.mark.parametrize("text", ["\0", "\x1b]0;title\x07", "\u202e", "\U0001f600" * 3000, "a\n\nid: 99\nevent: end\ndata: {}\n\n"])
async def test_texts_of_failures_are_told_as_they_are(database: str, tmp_path: Any, text: str) -> None:
    """[S10], [S14]: an error's message is the agent's own word; it breaks no line and no database column."""
    async with house(database, tmp_path) as h:
        session, turn, process = await running(h)
        process.settle(turn, "failed", error={"code": "handler_failed", "message": text})
        assert (await h.turn(session, turn))["error"]["message"] == text
        following = (await h.enqueue(session))["id"]
        await process.began(following)
        process.die("killed")
        assert (await h.turn(session, following))["status"] == "interrupted"
        h.host.auto_init = False
        last = (await h.enqueue(session))["id"]
        again = await next_process(h, session)
        again.say("init.failed", error={"code": "init_failed", "message": text})
        failed = await h.until(session, "session.process_failed", 2)
        assert failed["data"]["message"] == text[-4000:]
        assert (await h.turn(session, last, wait=0.0))["status"] == "queued"
