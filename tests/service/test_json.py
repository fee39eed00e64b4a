"""Any JSON text, in every place that takes one: raw bytes to REST, the guest, and back by the client. SPEC [E6], [S1], [S3], [S4], [S10].

The control plane, the guest and both clients are real; Agents run in this process.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from helmr import AgentContext, Turn, agent, image, template
from helmr.protocol import errors, jsontext
from helmr.protocol.content import as_text
from helmr.protocol.errors import HelmrError, by_code
from helmr.protocol.limits import CONTENT_BYTES, CONTENT_PARTS, INPUT_BYTES, JSON_DEPTH, RESULT_BYTES, TURN_OUTPUT_BYTES
from helmr.testing import SyncRuntime
from helmr.testing.database import DatabaseServer

TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=60)
"""NUL, emoji, bidi controls, line and paragraph separators: all but lone surrogates."""
ANY_TEXTS = st.text(st.characters(), max_size=20)
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([0, -0.0, 1, 1.0, 2**53 + 1, -(2**63) - 1, 10**4000, 5e-324, 1.7976931348623157e308, 0.1, 1e22, 123456789.123456789]),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[Any, bytes]:
    """A value and one of its many spellings: blanks, line ends, escapes, exponents."""
    value = draw(VALUES.filter(lambda value: value != []))
    blanks = st.sampled_from(["", "", " ", "\n", "\r\n", "\t "])

    def text(value: str) -> str:
        return json.dumps(value) if draw(st.booleans()) else jsontext.text(value).decode()

    def spelled(value: Any) -> str:
        if isinstance(value, str):
            said = text(value)
        elif isinstance(value, list):
            said = "[" + ",".join(map(spelled, value)) + draw(blanks) + "]"
        elif isinstance(value, dict):
            said = "{" + ",".join(f"{draw(blanks)}{text(name)}{draw(blanks)}:{spelled(member)}" for name, member in value.items()) + "}"
        else:
            said = json.dumps(value).replace("e", "E") if isinstance(value, float) else json.dumps(value)
        return draw(blanks) + said + draw(blanks)

    return value, spelled(value).encode()


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """The same examples each time. Drawn before the runtime is there: hypothesis wants `random` for itself, and its threads use it."""
    found: list[Any] = []

    @settings(max_examples=count, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def take(example: Any) -> None:
        found.append(example)

    take()
    return found


@pytest.fixture(scope="module")
def examples() -> dict[str, list[Any]]:
    prompts = st.lists(TEXTS.filter(bool), min_size=1, max_size=3)
    return {
        "values": drawn(spellings(), 80),
        "messages": drawn(ANY_TEXTS.filter(lambda text: text != "stop"), 60),
        "questions": drawn(st.tuples(prompts, st.lists(VALUES, min_size=1, max_size=3), TEXTS), 30),
        "keys": drawn(st.tuples(ANY_TEXTS, ANY_TEXTS, ANY_TEXTS), 60),
    }


small = template(id="small", image=image("small").from_host())


class Anything:
    """A schema that takes what comes."""

    async def validate(self, value: Any, /) -> Any:
        return value


@agent(id="mirror", template=small, input_schema=Anything(), close_after_idle="never")
async def mirror(turn: Turn[Any], ctx: AgentContext[None]) -> Any:
    await turn.output.write([{"type": "text", "text": "before"}, {"type": "json", "value": turn.input}])
    await turn.respond([{"type": "json", "value": turn.input}])
    return turn.input


@agent(id="listener", template=small, close_after_idle="never")
async def listener(turn: Turn[Any], ctx: AgentContext[None]) -> Any:
    """Says what its messages say, until one says "stop"."""
    import asyncio

    stop = asyncio.Event()
    heard: list[str] = []

    async def hear(message: Any) -> None:
        text = as_text(message.content)
        heard.append(text)
        await turn.output.write(text)
        if text == "stop":
            stop.set()

    await turn.on_message(hear)
    await turn.output.write("listening")
    await stop.wait()
    return heard


@agent(id="asker", template=small, input_schema=Anything(), close_after_idle="never")
async def asker(turn: Turn[Any], ctx: AgentContext[None]) -> Any:
    answer = await turn.ask(turn.input)
    return answer.answer


@agent(id="writer", template=small, input_schema=Anything(), close_after_idle="never")
async def writer(turn: Turn[Any], ctx: AgentContext[None]) -> Any:
    """Tries one thing, says what came of it, and goes on."""
    what, size = turn.input
    said: list[str] = []

    async def attempt(value: Any, how: Any = None) -> None:
        try:
            await (how or turn.output.write)(value)
            said.append("ok")
        except HelmrError as error:
            said.append(error.code)

    match what:
        case "text":
            await attempt("é" * (size // 2) + "x" * (size % 2))
        case "respond":
            await attempt("x" * size, turn.respond)
        case "parts":
            await attempt([{"type": "text", "text": "p"}] * size)
        case "nested":
            value: Any = 0
            for _ in range(size):
                value = [value]
            await attempt([{"type": "json", "value": value}])
        case "odd":
            bad = [
                "\ud800",
                [{"type": "json", "value": float("nan")}],
                [{"type": "json", "value": 10**5000}],
                [{"type": "json", "value": {1: 2}}],
            ]
            for value in [*bad, [{"type": "json", "value": b"x"}], [{"type": "html"}], [1], 7, None, [{"type": "text", "text": 1}]]:
                await attempt(value)
        case "all":
            for _ in range(TURN_OUTPUT_BYTES // CONTENT_BYTES):
                await attempt("x" * (CONTENT_BYTES - 27))
            await attempt("")
        case _:
            return "x" * (size - 2)
    await turn.output.write("still here") if what != "all" else None
    return said


@pytest.fixture(scope="module")
def runtime(examples: dict[str, list[Any]], helmr_database_server: DatabaseServer) -> Iterator[SyncRuntime]:
    with SyncRuntime(helmr_database_server, [mirror, listener, asker, writer]) as made:
        made.person.is_away()
        yield made


def exact(value: Any) -> str:
    """A text that tells 1 from 1.0, 0.0 from -0.0, and the order of names."""
    return json.dumps(value, ensure_ascii=True)


def posted(runtime: SyncRuntime, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """POST raw bytes; the answer must be JSON of ours, and no fault."""
    url = urlsplit(runtime.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20)
    try:
        connection.request("POST", path, body, {"Authorization": f"Bearer {runtime.api_key}"})
        answer = connection.getresponse()
        members = json.loads(answer.read())
    finally:
        connection.close()
    assert answer.status < 500, members
    if answer.status >= 400:
        assert members["code"] in by_code() and members["status"] == answer.status
    return answer.status, members


def outputs(session: Any, turn: str) -> list[Any]:
    """What a Turn said, by the pages and by the stream, which must agree."""
    found = [event for event in session.events.list(limit=1000).records if event.turn_id == turn]
    with session.events.stream(after=found[0].sequence - 1) as stream:
        streamed = [next(stream) for _ in range(found[-1].sequence - found[0].sequence + 1)]
    assert [exact(event.data) for event in streamed if event.turn_id == turn] == [exact(event.data) for event in found]
    return [event.data for event in found if event.kind == "turn.output"]


# --- values that are JSON ---------------------------------------------------------------------------------------------------


def test_any_json_goes_through_rest_the_guest_and_back_exactly(runtime: SyncRuntime, examples: dict[str, list[Any]]) -> None:
    """[E6]: input, output, response and result are the value that was sent, however it was spelled."""
    session = runtime.client.sessions.create(agent=mirror).session
    for value, raw in examples["values"]:
        status, receipt = posted(runtime, f"/v1/sessions/{session.id}/turns", b'{"input":' + raw + b"}")
        assert status == 201, raw
        turn = session.turns.ref(receipt["id"])
        outcome = turn.wait()
        assert outcome.status == "completed", (raw, outcome)
        assert exact(outcome.result) == exact(value)
        state = turn.get()
        assert exact(state.input) == exact(value)
        assert exact(state.response) == exact([{"type": "json", "value": value}])
        (said,) = outputs(session, turn.id)
        assert exact(said) == exact([{"type": "text", "text": "before"}, {"type": "json", "value": value}])
    session.cancel()


@pytest.mark.parametrize("depth", [1, JSON_DEPTH - 2])
def test_json_as_deep_as_may_be_goes_through(runtime: SyncRuntime, depth: int) -> None:
    value: Any = {"": 0}
    for _ in range(depth - 1):
        value = [value]
    made = runtime.client.sessions.create(agent=mirror, input=value)
    assert exact(made.turn.wait().result) == exact(value)
    assert exact(made.session.turns.list().items[0].result) == exact(value)
    made.session.cancel()


def test_an_input_of_64_levels_is_admitted_with_and_without_a_key(runtime: SyncRuntime) -> None:
    """[S4]: to be able to be repeated makes a request no larger."""
    session = runtime.client.sessions.create(agent=mirror).session
    raw = b'{"input":' + b"[" * JSON_DEPTH + b"]" * JSON_DEPTH + b"}"
    assert posted(runtime, f"/v1/sessions/{session.id}/turns", raw)[0] == 201
    value = jsontext.loads(raw)["input"]
    turn = session.enqueue(value, idempotency_key="deep")
    assert session.enqueue(value, idempotency_key="deep").id == turn.id
    assert runtime.client.sessions.create(agent=mirror, input=value).turn is not None
    with pytest.raises(errors.ContentInvalid):
        session.enqueue([value])
    session.cancel()


# --- texts that are none, or that readers could take differently -------------------------------------------------------------

WRONG = {
    "nan": (b"NaN", "content_invalid"),
    "infinity": (b"-Infinity", "content_invalid"),
    "too large a number": (b"1e400", "content_invalid"),
    "five thousand digits": (b"9" * 5000, "content_invalid"),
    "five thousand digits below zero, deep inside": (b'[{"a":-' + b"9" * 5000 + b"}]", "content_invalid"),
    "half a character": (b'"\\ud800"', "content_invalid"),
    "half a character as a name": (b'{"\\udfff":1}', "content_invalid"),
    "halves in the wrong order": (b'"\\ude00\\ud83d"', "content_invalid"),
    "65 levels": (b"[" * 65 + b"]" * 65, "content_invalid"),
    "a hundred thousand levels": (b"[" * 100_000 + b"]" * 100_000, "content_invalid"),
    "a name twice": (b'{"a":1,"a":1}', "invalid_request"),
    "a name twice, spelled differently": (b'{"a":1,"\\u0061":1}', "invalid_request"),
    "an empty name twice": (b'{"":1,"":1}', "invalid_request"),
    "no UTF-8": (b'"\xff"', "invalid_request"),
    "half of UTF-8": (b'"\xf0\x9f\x98"', "invalid_request"),
    "a surrogate in UTF-8": (b'"\xed\xa0\x80"', "invalid_request"),
    "longer UTF-8 than needed": (b'"\xc0\x80"', "invalid_request"),
    "a bare NUL": (b'"\0"', "invalid_request"),
    "a bare line end": (b'"a\nb"', "invalid_request"),
    "a leading zero": (b"01", "invalid_request"),
    "a plus": (b"+1", "invalid_request"),
    "no digits": (b"1.", "invalid_request"),
    "hex": (b"0x10", "invalid_request"),
    "a comma too many": (b"[1,]", "invalid_request"),
    "single quotes": (b"'a'", "invalid_request"),
    "a comment": (b"1/**/", "invalid_request"),
    "an odd blank": ("\u00a01".encode(), "invalid_request"),
    "a bad escape": (b'"\\x41"', "invalid_request"),
    "nothing": (b"", "invalid_request"),
}


@pytest.mark.parametrize(("raw", "code"), WRONG.values(), ids=WRONG)
def test_what_is_no_json_is_refused_by_its_code_wherever_it_stands(runtime: SyncRuntime, raw: bytes, code: str) -> None:
    """400 for what is no JSON, 422 for a value that can't be; nothing is admitted, and the connection lives."""
    session = runtime.client.sessions.create(agent=mirror).session
    expected = {"content_invalid": 422, "invalid_request": 400}[code]
    for path, body in (
        (f"/v1/sessions/{session.id}/turns", b'{"input":%b}' % raw),
        ("/v1/sessions", b'{"agent":"mirror","input":%b}' % raw),
        ("/v1/sessions", b'{"agent":"mirror","labels":{"a":%b}}' % raw),
        (f"/v1/sessions/{session.id}/turns/{session.id}/messages", b'{"content":[{"type":"text","text":%b}]}' % raw),
    ):
        status, problem = posted(runtime, path, body)
        if b"labels" in body and raw.startswith(b"[[") and len(raw) < 1000:
            assert problem["code"] in ("invalid_request", code)
        else:
            assert (status, problem["code"]) in ((expected, code), (404, "turn_not_found"), (422, "content_kind_unsupported"))
    assert session.turns.list().items == ()
    session.cancel()


@pytest.mark.parametrize(
    "body", [b"\xef\xbb\xbf{}", '{"agent":"mirror"}'.encode("utf-16"), b"{}{}", b"[]", b"null", b'"x"', b"7", b"{", b'{"agent":"mirror"}\0']
)
def test_a_body_that_is_no_object_is_400(runtime: SyncRuntime, body: bytes) -> None:
    assert posted(runtime, "/v1/sessions", body)[1]["code"] == "invalid_request"


# --- texts: messages, questions, answers, keys, labels ------------------------------------------------------------------------


def test_any_text_is_heard_as_a_message_or_refused(runtime: SyncRuntime, examples: dict[str, list[Any]]) -> None:
    """[S7]: exactly what was sent; a lone surrogate never leaves the client, an empty message is `input_empty`."""
    made = runtime.client.sessions.create(agent=listener, input=[{"type": "text", "text": "go"}])
    with made.session.events.stream() as stream:
        next(event for event in stream if event.kind == "turn.output")
    sent: list[str] = []
    for text in examples["messages"]:
        try:
            made.turn.send([{"type": "text", "text": text}])
        except HelmrError as error:
            assert error.code == ("content_invalid" if text else "input_empty")
            assert not text or any("\ud800" <= character <= "\udfff" for character in text)
        else:
            sent.append(text)
    made.turn.send([{"type": "text", "text": "stop"}])
    outcome = made.turn.wait()
    assert outcome.status == "completed"
    assert outcome.result == [*sent, "stop"]
    assert len(sent) > 10
    made.session.cancel()


def test_any_question_is_asked_exactly_and_any_answer_comes_back_exactly(runtime: SyncRuntime, examples: dict[str, list[Any]]) -> None:
    """[Q1]-[Q3]: prompts, labels and values of options hold any JSON; the answer is the option's value."""
    session = runtime.client.sessions.create(agent=asker).session
    for prompt, values, custom in examples["questions"]:
        options = [{"id": f"o{n}", "label": prompt[0], "value": value} for n, value in enumerate(values)]
        asked = {
            "prompt": [{"type": "text", "text": text} for text in prompt],
            "answer": {"type": "choice", "options": options, "multiple": True, "allow_text": True},
        }
        turn = session.enqueue(asked)
        with session.events.stream() as stream:
            event = next(event for event in stream if event.kind in ("question.asked", "turn.failed") and event.turn_id == turn.id)
        assert event.kind == "question.asked", event
        question = turn.asks.get(event.data["question_id"])
        assert exact(question.question) == exact({**asked, "prompt": [{"type": "text", "text": "".join(prompt)}]})
        answer = {"type": "choice", "selections": [{"id": f"o{n}", "value": value} for n, value in enumerate(values)]}
        if custom:
            answer["text"] = custom
        turn.asks.respond(question.id, answer=answer, response_id="r")
        outcome = turn.wait()
        assert outcome.status == "completed", outcome
        assert exact(outcome.result["selections"]) == exact(answer["selections"])
        assert outcome.result.get("text") == (custom or None)
    session.cancel()


def test_any_key_and_label_names_exactly_its_session_or_is_refused(runtime: SyncRuntime, examples: dict[str, list[Any]]) -> None:
    """[S3], [S25]."""
    client = runtime.client
    named = 0
    for key, name, value in examples["keys"]:
        try:
            made = client.sessions.create(agent="mirror", key=key, labels={name: value})
        except errors.SessionKeyConflict as conflict:
            assert client.sessions.list(agent="mirror", key=key).items[0].id == conflict.facts["session_id"]
        except HelmrError as error:
            assert error.code in ("invalid_value", "content_invalid"), error
            odd = key + name + value
            assert not (key and name and value) or "\0" in odd or ":" in name or any("\ud800" <= c <= "\udfff" for c in odd)
        else:
            named += 1
            (found,) = client.sessions.list(agent="mirror", key=key).items
            assert (found.id, found.key, dict(found.labels)) == (made.session.id, key, {name: value})
            assert made.session.id in {item.id for item in client.sessions.list(labels={name: value}).items}
    assert named > 10


# --- limits -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "size", "said"),
    [
        ("text", CONTENT_BYTES - 28, "ok"),
        ("text", CONTENT_BYTES - 27, "ok"),
        ("text", CONTENT_BYTES - 26, "content_limit_exceeded"),
        ("respond", CONTENT_BYTES - 27, "ok"),
        ("respond", CONTENT_BYTES - 26, "content_limit_exceeded"),
        ("parts", CONTENT_PARTS, "ok"),
        ("parts", CONTENT_PARTS + 1, "content_limit_exceeded"),
        ("nested", JSON_DEPTH - 2, "ok"),
        ("nested", JSON_DEPTH - 1, "content_invalid"),
        ("nested", 5000, "content_invalid"),
    ],
)
@pytest.mark.ud("UD-56")
def test_at_the_limit_is_fine_and_one_over_is_refused_and_the_turn_goes_on(runtime: SyncRuntime, what: str, size: int, said: str) -> None:
    """[E6]: bytes of the compact UTF-8 encoding, parts as sent."""
    made = runtime.client.sessions.create(agent=writer, input=[what, size])
    outcome = made.turn.wait()
    assert (outcome.status, outcome.result) == ("completed", [said])
    assert outputs(made.session, made.turn.id)[-1] == [{"type": "text", "text": "still here"}]
    made.session.cancel()


def test_no_odd_value_of_a_handler_ends_its_turn(runtime: SyncRuntime) -> None:
    made = runtime.client.sessions.create(agent=writer, input=["odd", 0])
    outcome = made.turn.wait()
    assert outcome.status == "completed"
    assert set(outcome.result) == {"content_invalid"}
    assert outputs(made.session, made.turn.id) == [[{"type": "text", "text": "still here"}]]
    made.session.cancel()


@pytest.mark.ud("UD-56")
def test_a_turn_may_say_8_mib_to_the_byte(runtime: SyncRuntime) -> None:
    """[E6]: the 33rd value is refused, however small, and the Turn completes."""
    made = runtime.client.sessions.create(agent=writer, input=["all", 0])
    outcome = made.turn.wait()
    assert outcome.status == "completed"
    assert outcome.result == ["ok"] * (TURN_OUTPUT_BYTES // CONTENT_BYTES) + ["content_limit_exceeded"]
    made.session.cancel()


@pytest.mark.parametrize(("size", "status", "code"), [(RESULT_BYTES, "completed", None), (RESULT_BYTES + 1, "failed", "result_too_large")])
def test_a_result_is_at_most_256_kib(runtime: SyncRuntime, size: int, status: str, code: str | None) -> None:
    """[S10]."""
    made = runtime.client.sessions.create(agent=writer, input=["result", size])
    outcome = made.turn.wait()
    assert (outcome.status, outcome.error.code if code else None) == (status, code)
    made.session.cancel()


@pytest.mark.parametrize("text", ["x", "é", "\0", "\U0001f600"])
def test_an_input_and_a_message_are_at_most_256_kib(runtime: SyncRuntime, text: str) -> None:
    """[S1], [S7]: measured in the stored encoding; 413 `content_limit_exceeded` one byte over."""
    session = runtime.client.sessions.create(agent=mirror).session
    unit = len(jsontext.dumps(text)) - 2
    count, rest = divmod(INPUT_BYTES - 2, unit)
    fits = text * count + "x" * rest
    assert len(jsontext.dumps(fits)) == INPUT_BYTES
    assert session.enqueue(fits).get().input == fits
    with pytest.raises(errors.ContentLimitExceeded) as refused:
        session.enqueue(fits + "x")
    assert refused.value.facts["status"] == 413 and not refused.value.retryable
    assert len(session.turns.list().items) == 1
    session.cancel()
