"""Replies that nobody takes: how long they are kept, how many of them, and what a connection begins meanwhile. UD-52, SPEC 11."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import pytest

from helmr.control.api.exchange import CUT
from helmr.control.api.http_protocol import JOINED_BYTES, HttpProtocol
from helmr.control.api.presence import ON_GONE
from helmr.control.api.unsent import Unsent
from helmr.control.listener import Listener, ListenerConfig

pytestmark = pytest.mark.anyio
Bounded = Callable[[], AbstractAsyncContextManager[object]]
Send = Callable[[Any], Awaitable[None]]
LONG = b"0123456789abcdef" * (1 << 17)
"""2 MiB: more than the kernel takes for a client that reads nothing, with such buffers."""
KERNEL_BYTES = 64 << 10
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Pipe(asyncio.Transport):
    """A transport with as much in its buffer as the test says."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted.set()


async def test_who_takes_nothing_is_cut_once_the_patience_is_over(bounded: Bounded) -> None:
    unsent = Unsent(patience_seconds=0.01)
    pipe = Pipe(100)
    unsent.add(pipe)
    async with bounded():
        await pipe.aborted.wait()
    assert unsent.held == 0


async def test_who_takes_something_is_waited_for_again(bounded: Bounded) -> None:
    looks = 0

    class Draining(Pipe):
        """Some of it is taken between any two looks, until 5 were made."""

        def get_write_buffer_size(self) -> int:
            nonlocal looks
            looks += 1
            return 100 - min(looks, 5)

    unsent = Unsent(patience_seconds=0.001)
    pipe = Draining(0)
    unsent.add(pipe)
    async with bounded():
        await pipe.aborted.wait()
    assert looks > 5


async def test_when_all_hold_too_much_the_longest_silence_is_cut_and_the_newest_is_not() -> None:
    unsent = Unsent(held_bytes=1000)
    pipes = [Pipe(400) for _ in range(5)]
    for pipe in pipes:
        unsent.add(pipe)
    assert [pipe.aborted.is_set() for pipe in pipes] == [True, True, True, False, False]
    assert unsent.held == 800
    alone = Unsent(held_bytes=1000)
    alone.add(pipes[4], 5000)
    assert not pipes[4].aborted.is_set(), "whoever is alone may hold more"
    assert alone.held == 5000, "a transport may keep all of what it was given"
    for each in (unsent, alone):
        for pipe in pipes:
            each.discard(pipe)
        assert each.held == 0


class App:
    """Counts its requests, and answers each with what the test sets."""

    def __init__(self) -> None:
        self.answer: Callable[[Any, Send], Awaitable[None]] = self.whole
        self.asked: list[str] = []
        self.lost = asyncio.Event()
        """Some connection ended."""

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        self.asked.append(scope["path"])
        await self.answer(scope, send)

    async def whole(self, scope: Any, send: Send) -> None:
        body = LONG if scope["path"] == "/" else b"short"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


class Watched(Unsent):
    """Says when the first reader is waited for."""

    def __init__(self) -> None:
        super().__init__(patience_seconds=60)
        self.began = asyncio.Event()

    def add(self, transport: asyncio.Transport, longest: int = 0) -> None:
        super().add(transport, longest)
        self.began.set()


@pytest.fixture
async def unsent(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    monkeypatch.setattr(HttpProtocol, "unsent", made)
    return made


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def port(app: App, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    made = HttpProtocol.connection_made

    def connection_made(self: HttpProtocol, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        made(self, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", connection_made)
    gone = HttpProtocol.connection_lost

    def connection_lost(self: HttpProtocol, exc: Exception | None) -> None:
        gone(self, exc)
        app.lost.set()

    monkeypatch.setattr(HttpProtocol, "connection_lost", connection_lost)
    listener = Listener(ListenerConfig(stop_seconds=1))
    await listener.start(app)
    yield int(listener.url.rpartition(":")[2])
    await listener.stop()


@contextmanager
def mute(port: int, data: bytes) -> Iterator[socket.socket]:
    """A client that writes and does not read by itself."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
        client.connect(("127.0.0.1", port))
        client.sendall(data)
        client.setblocking(False)
        yield client


async def short(port: int) -> bytes:
    """What another client gets, who asks for little and reads it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /short HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_reply_that_nobody_takes_is_cut_and_no_fault_is_logged(
    app: App, port: int, monkeypatch: pytest.MonkeyPatch, bounded: Bounded, caplog: pytest.LogCaptureFixture
) -> None:
    unsent = Unsent(patience_seconds=0.01)
    monkeypatch.setattr(HttpProtocol, "unsent", unsent)
    async with bounded():
        with mute(port, GET) as client:
            await app.lost.wait()
            loop = asyncio.get_running_loop()
            taken = 0
            try:
                while data := await loop.sock_recv(client, 1 << 20):
                    taken += len(data)
            except ConnectionResetError:
                pass
            assert taken < len(LONG), "what the client sees is no whole reply"
    assert unsent.held == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_pipeline_begins_one_reply_at_a_time_while_its_reader_takes_nothing(
    app: App, port: int, unsent: Watched, bounded: Bounded
) -> None:
    count = 4
    async with bounded():
        with mute(port, GET * count) as client:
            await unsent.began.wait()
            for _ in range(10):  # a connection that went on would have had every chance to
                assert (await short(port)).endswith(b"short")
            assert app.asked.count("/") == 1
            loop = asyncio.get_running_loop()
            taken = bytearray()
            while taken.count(b"\r\n\r\n") < count or not taken.endswith(LONG):
                taken += await loop.sock_recv(client, 1 << 20)
            assert taken.count(LONG) == count
            await loop.sock_sendall(client, b"GET /short HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await loop.sock_recv(client, 1 << 16)).endswith(b"short"), "the connection can be used again"


async def test_a_client_that_leaves_its_pipeline_ends_the_request_that_is_answered(
    app: App, port: int, unsent: Watched, bounded: Bounded, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only the last one that came; what is still said to the client falls flat."""
    gone, done = asyncio.Event(), asyncio.Event()

    async def answer(scope: Any, send: Send) -> None:
        scope["extensions"][ON_GONE](gone.set)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": LONG, "more_body": True})
        done.set()

    app.answer = answer
    async with bounded():
        with mute(port, GET * 3):
            await unsent.began.wait()
        await gone.wait()
        await done.wait()
    assert app.asked == ["/"]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_long_piece_of_a_stream_arrives_whole_and_the_next_is_asked_for_when_it_was_taken(
    app: App, port: int, unsent: Watched, bounded: Bounded
) -> None:
    sent: list[int] = []

    async def answer(scope: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": LONG, "more_body": True})
            sent.append(number)
        await send({"type": "http.response.body", "body": b"z" * (JOINED_BYTES + 1)})

    app.answer = answer
    async with bounded():
        with mute(port, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n") as client:
            await unsent.began.wait()
            app.answer = app.whole
            assert (await short(port)).endswith(b"short")
            assert sent == [], "the first piece is still under way"
            loop = asyncio.get_running_loop()
            taken = bytearray()
            while data := await loop.sock_recv(client, 1 << 20):
                taken += data
    size = b"%x\r\n" % len(LONG)
    assert taken.count(size + LONG + b"\r\n") == 3
    assert taken.endswith(b"%x\r\n" % (JOINED_BYTES + 1) + b"z" * (JOINED_BYTES + 1) + b"\r\n0\r\n\r\n")


async def test_a_reply_that_is_cut_ends_with_all_that_waits_and_no_fault_is_logged(
    app: App, port: int, unsent: Watched, bounded: Bounded, caplog: pytest.LogCaptureFixture
) -> None:
    """What the API does with a reader of events that takes nothing for too long."""
    done = asyncio.Event()

    async def answer(scope: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        sending = asyncio.ensure_future(send({"type": "http.response.body", "body": LONG, "more_body": True}))
        await unsent.began.wait()
        scope["extensions"][CUT]()
        await sending
        done.set()

    app.answer = answer
    async with bounded():
        with mute(port, GET):
            await done.wait()
            await app.lost.wait()
    assert unsent.held == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
