"""What our part of the HTTP connection promises: a reply in one write, headers at once where a stream follows, idle connections closed, and
word of a client that has gone. DESIGN 7."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from helmr.control.api.exchange import REPLY
from helmr.control.api.http_protocol import JOINED_BYTES, HttpProtocol
from helmr.control.api.presence import ON_GONE
from helmr.control.listener import Listener, ListenerConfig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Callable[[], Awaitable[Any]], Send], Awaitable[None]]


class App:
    """Answers each request with what the test sets."""

    def __init__(self) -> None:
        self.answer: Application = self._nothing

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        await self.answer(scope, receive, send)

    async def _nothing(self, scope: Any, receive: Any, send: Send) -> None:
        raise AssertionError("no request was expected")


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def listener(app: App) -> AsyncIterator[Listener]:
    listener = Listener(ListenerConfig())
    await listener.start(app)
    yield listener
    await listener.stop()


@pytest.fixture
async def wire(listener: Listener) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = listener.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield reader, writer
    writer.close()


async def reply(send: Send, body: bytes, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body)), *headers]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that connections write."""
    found: list[bytes] = []

    class Recording:
        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport

        def write(self, data: bytes) -> None:
            found.append(data)
            self._transport.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    made = HttpProtocol.connection_made

    def connection_made(self: HttpProtocol, transport: asyncio.Transport) -> None:
        made(self, Recording(transport))  # type: ignore[arg-type]

    monkeypatch.setattr(HttpProtocol, "connection_made", connection_made)
    return found


async def test_a_whole_reply_leaves_in_one_write(writes: list[bytes], app: App, wire: Any, bounded: Bounded) -> None:
    async def answer(scope: Any, receive: Any, send: Send) -> None:
        await reply(send, b"ok")

    app.answer = answer
    reader, writer = wire
    async with bounded():
        for _ in range(2):  # the connection is used again
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"date: " in head
            assert b"content-length: 2\r\n" in head
            assert await reader.readexactly(2) == b"ok"
    assert len(writes) == 2


async def test_a_reply_in_one_call_leaves_in_one_write_and_the_connection_goes_on(
    writes: list[bytes], app: App, wire: Any, bounded: Bounded
) -> None:
    async def answer(scope: Any, receive: Any, send: Send) -> None:
        assert scope["extensions"][REPLY](201, [(b"content-length", b"2"), (b"x-a", b"b")], b"ok")

    app.answer = answer
    reader, writer = wire
    async with bounded():
        for number in (1, 2):
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 201 ")
            assert b"\r\nx-a: b\r\n" in head
            assert await reader.readexactly(2) == b"ok"
            assert len(writes) == number


async def test_a_reply_in_one_call_is_refused_while_the_client_takes_too_little(app: App, wire: Any, bounded: Bounded) -> None:
    taken: list[bool] = []

    async def answer(scope: Any, receive: Any, send: Send) -> None:
        at_once = scope["extensions"][REPLY]
        at_once.__self__.flow.pause_writing()
        taken.append(at_once(200, [(b"content-length", b"2")], b"no"))
        at_once.__self__.flow.resume_writing()
        await reply(send, b"ok")

    app.answer = answer
    reader, writer = wire
    async with bounded():
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(2) == b"ok"
    assert taken == [False]


async def test_a_second_reply_in_one_call_is_a_fault(app: App, wire: Any, bounded: Bounded) -> None:
    async def answer(scope: Any, receive: Any, send: Send) -> None:
        at_once = scope["extensions"][REPLY]
        assert at_once(200, [(b"content-length", b"2")], b"ok")
        with pytest.raises(RuntimeError):
            at_once(200, [(b"content-length", b"2")], b"ko")

    app.answer = answer
    reader, writer = wire
    async with bounded():
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"ok"


async def test_a_long_body_arrives_whole(app: App, wire: Any, bounded: Bounded) -> None:
    body = bytes(range(256)) * (JOINED_BYTES // 64)

    async def answer(scope: Any, receive: Any, send: Send) -> None:
        await reply(send, body)

    app.answer = answer
    reader, writer = wire
    async with bounded():
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(body)) == body


async def test_the_headers_of_a_stream_leave_before_its_first_piece(app: App, wire: Any, bounded: Bounded) -> None:
    go = asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await go.wait()
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    app.answer = answer
    reader, writer = wire
    async with bounded():
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"transfer-encoding: chunked\r\n" in await reader.readuntil(b"\r\n\r\n")
        go.set()
        assert await reader.readexactly(13) == b"3\r\none\r\n0\r\n\r\n"


async def test_a_head_request_gets_headers_alone(app: App, wire: Any, bounded: Bounded) -> None:
    async def answer(scope: Any, receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b""})

    app.answer = answer
    reader, writer = wire
    async with bounded():
        writer.write(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\nHEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        heads = await reader.read(-1)
    assert heads.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert heads.count(b"content-length: 5\r\n") == 2
    assert heads.count(b"connection: close\r\n") == 1
    assert heads.endswith(b"\r\n\r\n")


async def test_requests_that_come_together_are_answered_in_order(app: App, wire: Any, bounded: Bounded) -> None:
    async def answer(scope: Any, receive: Any, send: Send) -> None:
        await asyncio.sleep(0)
        await reply(send, scope["raw_path"] + b"?" + scope["query_string"])

    app.answer = answer
    reader, writer = wire
    async with bounded():
        writer.write(b"".join(b"GET /%d?%d HTTP/1.1\r\nhost: x\r\n\r\n" % (n, n) for n in range(5)))
        for n in range(5):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(4) == b"/%d?%d" % (n, n)


async def test_a_reply_that_says_close_ends_the_connection(app: App, wire: Any, bounded: Bounded) -> None:
    async def answer(scope: Any, receive: Any, send: Send) -> None:
        await reply(send, b"no", (b"connection", b"close"), status=413)

    app.answer = answer
    reader, writer = wire
    async with bounded():
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        found = await reader.read(-1)
    assert found.count(b"connection: close\r\n") == 1
    assert found.endswith(b"\r\n\r\nno")


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([(b"content-length", b"2"), (b"x-text", b"a\r\nx-other: b")], b"ok"),
        ([(b"content-length", b"1")], b"ok"),
        ([(b"content-length", b"3")], b"ok"),
    ],
    ids=["a line end in a header", "a body too long", "a body too short"],
)
async def test_a_reply_that_would_break_the_framing_is_not_sent(headers: Any, body: bytes, app: App, wire: Any, bounded: Bounded) -> None:
    async def answer(scope: Any, receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    app.answer = answer
    reader, writer = wire
    async with bounded():
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        found = await reader.read(-1)  # the connection ends
    assert b"x-other" not in found
    assert b"content-length: 1\r\n" not in found


async def test_who_waits_is_called_when_the_client_goes_and_not_after(app: App, listener: Listener, bounded: Bounded) -> None:
    waits, gone, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    async def answer(scope: Any, receive: Any, send: Send) -> None:
        on_gone = scope["extensions"][ON_GONE]
        if scope["path"] == "/stays":
            on_gone(lambda: calls.append("called after the reply"))
            await reply(send, b"ok")
            answered.set()
            return
        on_gone(gone.set)
        waits.set()
        await gone.wait()
        late = asyncio.Event()
        on_gone(late.set)  # who comes after the client has gone is told too
        await late.wait()
        calls.append("told late")

    app.answer = answer
    host, _, port = listener.url.removeprefix("http://").rpartition(":")
    async with bounded():
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /stays HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"ok")
        await answered.wait()
        writer.write(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n")
        await waits.wait()
        writer.close()
        await gone.wait()
        while "told late" not in calls:
            await asyncio.sleep(0)
    assert calls == ["told late"]


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    monkeypatch: pytest.MonkeyPatch, app: App, listener: Listener, bounded: Bounded
) -> None:
    """The one timer of a connection is rung by hand, with clocks that say what the test needs."""
    made: list[HttpProtocol] = []
    first = HttpProtocol.connection_made

    def connection_made(self: HttpProtocol, transport: asyncio.Transport) -> None:
        first(self, transport)
        made.append(self)

    monkeypatch.setattr(HttpProtocol, "connection_made", connection_made)
    go, busy = asyncio.Event(), asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Send) -> None:
        if scope["path"] == "/slow":
            busy.set()
            await go.wait()
        await reply(send, b"ok")

    app.answer = answer
    host, _, port = listener.url.removeprefix("http://").rpartition(":")
    async with bounded():
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"ok")
        (protocol,) = made
        protocol.timeout_keep_alive_handler()  # it was used a moment ago
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await busy.wait()
        monkeypatch.setattr(protocol, "timeout_keep_alive", 0)
        protocol.timeout_keep_alive_handler()
        monkeypatch.setattr(protocol, "timeout_keep_alive", 75)
        go.set()
        await reader.readuntil(b"ok")
        monkeypatch.setattr(protocol, "timeout_keep_alive", 0)
        protocol.timeout_keep_alive_handler()
        assert await reader.read(-1) == b""
        writer.close()
