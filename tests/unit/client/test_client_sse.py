"""The parser of server-sent events, and streams that go on over any cut [E4]."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.api_samples import END, SESSION, event, sse_event
from tests.unit.client.scripted_http import Reply, Request, problem, scripted, sse

from helmr.client import HelmrClient, RetryPolicy
from helmr.client.sse import Message, SseParser
from helmr.protocol import errors

STREAM = (
    "\ufeffretry: 250\n\n: heartbeat\n\nid: 1\nevent: turn.output\ndata: é🙂\ndata:two\n\nid: 2\r\ndata: x\r\n\r\ndata: no id\r\r"
    "event: end\ndata\n\nid: bad\0\nnofield\ndata: y\n\ndata: never dispatched"
).encode()
MESSAGES = [
    Message("turn.output", "é🙂\ntwo", "1"),
    Message("message", "x", "2"),
    Message("message", "no id", None),
    Message("end", "", None),
    Message("message", "y", None),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_parser_gives_the_same_messages_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    parser = SseParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [message for start, end in itertools.pairwise(edges) for message in parser.feed(STREAM[start:end])]
    assert found == MESSAGES
    assert parser.retry == 0.25


def test_the_parser_takes_single_bytes() -> None:
    parser = SseParser()
    assert [message for byte in STREAM for message in parser.feed(bytes([byte]))] == MESSAGES


def test_an_endless_message_and_other_text_than_utf_8_are_refused() -> None:
    parser = SseParser()
    with pytest.raises(errors.UnreadableAnswer):
        for _ in range(100):
            parser.feed(b"x" * 100_000)
    with pytest.raises(errors.UnreadableAnswer):
        SseParser().feed(b"data: \xff\n\n")


class Waits:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


def timeline(count: int) -> bytes:
    return b"retry: 100\n\n" + b"".join(sse_event(sequence) for sequence in range(1, count + 1)) + END


def resuming(count: int, draw: random.Random) -> object:
    """A server that keeps the timeline and cuts each connection at a random byte; it also sends heartbeats between events."""

    def answer(request: Request) -> Reply:
        after = int(request.query.removeprefix("after="))
        assert request.headers.get("last-event-id", "0") == str(after)
        body = b"retry: 100\n\n" + b"".join(b": beat\n\n" + sse_event(number) for number in range(after + 1, count + 1)) + END
        reply = sse(body)
        whole = len(reply.encoded())
        reply.cut = draw.randrange(whole + whole // 3)
        return reply

    return answer


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(12))
async def test_a_stream_cut_at_any_byte_yields_each_event_once_and_in_order(seed: int) -> None:
    """UD-51, [E4]."""
    waits = Waits()
    policy = RetryPolicy(sleep=waits.sleep, attempts=20, patience=1e9)
    async with scripted(resuming(40, random.Random(seed))) as server, HelmrClient(server.url, "key", retry=policy) as client:  # type: ignore[arg-type]
        stream = client.sessions.ref(SESSION).events.stream()
        found = [item async for item in stream]
        assert [item.sequence for item in found] == list(range(1, 41))
        assert found[0].data == [{"type": "text", "text": "1 é\n"}]
        assert stream.last_sequence == 40
        assert server.requests[0].path == f"/v1/sessions/{SESSION}/events/stream"


@pytest.mark.anyio
async def test_duplicates_are_dropped_and_a_gap_is_never_believed() -> None:
    waits = Waits()
    replies = [
        sse(sse_event(1) + sse_event(1) + sse_event(2) + sse_event(4)),
        sse(sse_event(2) + sse_event(3) + sse_event(4)),
        sse(END),
    ]
    async with scripted(replies) as server, HelmrClient(server.url, "key", retry=RetryPolicy(sleep=waits.sleep)) as client:
        found = [item.sequence async for item in client.sessions.ref(SESSION).events.stream()]
    assert found == [1, 2, 3, 4]
    assert [request.query for request in server.requests] == ["after=0", "after=2", "after=4"]


@pytest.mark.anyio
async def test_messages_without_an_id_move_no_cursor() -> None:
    """UD-49: only stored events carry an id."""
    noise = b"event: status\ndata: {}\n\n: beat\n\ndata: {}\n\n"
    replies = [sse(noise + sse_event(6) + noise), sse(noise + END)]
    waits = Waits()
    async with scripted(replies) as server, HelmrClient(server.url, "key", retry=RetryPolicy(sleep=waits.sleep)) as client:
        found = [item.sequence async for item in client.sessions.ref(SESSION).events.stream(after=5)]
    assert found == [6]
    assert server.requests[1].headers["last-event-id"] == "6"


@pytest.mark.anyio
async def test_a_silent_connection_is_given_up_and_opened_again() -> None:
    from helmr.client.event_stream import EventStream

    waits = Waits()
    replies = [sse(sse_event(1), hold=True), sse(sse_event(2) + END)]
    async with scripted(replies) as server, HelmrClient(server.url, "key", retry=RetryPolicy(sleep=waits.sleep)) as client:
        stream = EventStream(client._transport, f"/v1/sessions/{SESSION}/events/stream", 0, silence=0.05)
        assert [item.sequence async for item in stream] == [1, 2]
        assert stream.connections == 2


@pytest.mark.anyio
async def test_refusals_end_a_stream_and_a_restarting_server_does_not() -> None:
    waits = Waits()
    replies = [problem("shutting_down", 503), sse(sse_event(1)), problem("database_unavailable", 503), problem("cursor_expired", 410)]
    async with scripted(replies) as server, HelmrClient(server.url, "key", retry=RetryPolicy(sleep=waits.sleep)) as client:
        found: list[int] = []
        with pytest.raises(errors.CursorExpired):
            async for item in client.sessions.ref(SESSION).events.stream():
                found.append(item.sequence)
    assert found == [1] and len(server.requests) == 4


@pytest.mark.anyio
async def test_a_server_that_answers_and_hangs_up_is_asked_ever_less_often() -> None:
    waits = Waits()
    replies = [sse(b": hello\n\n")] * 6 + [sse(END)]
    policy = RetryPolicy(sleep=waits.sleep, draw=lambda: 1.0)
    async with scripted(replies) as server, HelmrClient(server.url, "key", retry=policy) as client:
        assert [item async for item in client.sessions.ref(SESSION).events.stream()] == []
    assert waits.seconds == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]


@pytest.mark.anyio
async def test_leaving_a_stream_early_closes_its_connection() -> None:
    async with scripted([sse(sse_event(1), hold=True)]) as server, HelmrClient(server.url, "key") as client:
        async with client.sessions.ref(SESSION).events.stream() as stream:
            assert (await anext(stream)).sequence == 1
        async with asyncio.timeout(5):
            await server.idle.wait()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.anyio
async def test_kinds_of_a_newer_server_pass() -> None:
    body = sse_event(1, "session.teleported", {"to": "mars"}) + END
    page = {"records": [event(1, "session.teleported", {})], "next_after": 1, "has_more": False, "retained_after": 0, "sealed": True}
    async with scripted([sse(body), Reply(page)]) as server, HelmrClient(server.url, "key") as client:
        found = [item async for item in client.sessions.ref(SESSION).events.stream()]
        listed = await client.sessions.ref(SESSION).events.list(after=0, limit=10)
    assert found[0].kind == "session.teleported"
    assert listed.records[0].kind == "session.teleported" and listed.sealed
    assert server.requests[1].target == f"/v1/sessions/{SESSION}/events?after=0&limit=10"
