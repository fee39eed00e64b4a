"""Streams over one socket: every byte in order, one reader that rests stops nobody else, a hostile end is cut off. [C4], DESIGN 6."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helmr.protocol.multiplex import CREDIT, DATA, END, HEADER, OPEN, PIECE, RESET, WINDOW, Multiplexer, Streams

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def joined(accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any], **options: Any) -> AsyncIterator[Multiplexer]:
    """The guest's end; streams that it opens come to `accept` at the host's."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    guest, host = Multiplexer("guest"), Multiplexer("host", accept=accept, **options)
    for end, sock in ((guest, ours), (host, theirs)):
        sock.setblocking(False)
        await loop.create_connection(lambda end=end: end, sock=sock)
    try:
        async with asyncio.timeout(10):
            yield guest
    finally:
        guest.close()
        host.close()
        await asyncio.gather(guest.closed, host.closed)


class Echo:
    """Sends back what comes, then its end."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(5000):
            writer.write(data)
            await writer.drain()
        writer.close()


async def exchange(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams

    async def send() -> None:
        for start in range(0, len(data), 30_000):
            writer.write(data[start : start + 30_000])
            await writer.drain()
        writer.write_eof()

    _, got = await asyncio.gather(send(), reader.read())
    writer.close()
    await writer.wait_closed()
    return got


async def test_many_streams_carry_their_own_bytes_however_much_more_than_a_window_that_is() -> None:
    async with joined(Echo()) as guest:
        texts = [bytes([number]) * (WINDOW * 5 + number) for number in range(12)]
        assert await asyncio.gather(*(exchange(guest.open(), text) for text in texts)) == texts
        assert await exchange(guest.open(), b"") == b""


async def test_a_reader_that_rests_stops_its_own_stream_only() -> None:
    """What waits for it stays within its windows; when it reads again it misses nothing."""
    resting: list[Streams] = []
    echo = Echo()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if resting:
            echo(reader, writer)
        else:
            resting.append((reader, writer))

    async with joined(accept) as guest:
        _, writer = guest.open()
        sent = bytes(range(256)) * (WINDOW // 32)
        writer.write(sent)
        waiting = asyncio.ensure_future(writer.drain())
        assert await exchange(guest.open(), b"others go on" * 20_000) == b"others go on" * 20_000
        assert not waiting.done()
        writer.write_eof()
        assert await resting[0][0].read() == sent
        await waiting
        resting[0][1].close()
        writer.close()


async def test_half_of_a_stream_may_end_before_the_other() -> None:
    async with joined(Echo()) as guest:
        reader, writer = guest.open()
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_the_end_of_the_socket_ends_its_streams_with_an_error() -> None:
    held: list[Streams] = []
    async with joined(lambda *ends: held.append(ends)) as guest:
        reader, writer = guest.open()
        writer.write(b"x")
        while not held:
            await asyncio.sleep(0)
        guest.close()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        with pytest.raises(ConnectionResetError):
            while True:
                await held[0][0].readexactly(1)
        with pytest.raises(ConnectionError):
            guest.open()


async def test_more_streams_than_allowed_are_reset_and_the_others_go_on() -> None:
    async with joined(Echo(), streams=2) as guest:
        first = guest.open()
        second = guest.open()
        reader, _ = guest.open()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert await exchange(first, b"a") == b"a"
        assert await exchange(second, b"b") == b"b"
        assert await exchange(guest.open(), b"c") == b"c"


def frame(number: int, kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(number, kind, len(payload)) + payload


@pytest.mark.parametrize(
    "said",
    [
        frame(2, OPEN),  # the host's own numbers
        frame(0, OPEN),
        frame(1, OPEN) + frame(1, OPEN),
        frame(1, 9),
        HEADER.pack(1, DATA, PIECE + 1),
        frame(1, OPEN) + frame(1, DATA, b"x" * PIECE) * (WINDOW // PIECE + 1),
        frame(1, OPEN) + frame(1, END) + frame(1, DATA, b"x"),
        frame(1, OPEN) + frame(1, CREDIT, (1).to_bytes(4, "big")),
        frame(1, OPEN) + frame(1, CREDIT, b"\1"),
        frame(1, OPEN) + frame(1, END, b"x"),
    ],
    ids=["other's number", "zero", "twice", "unknown kind", "too long", "over the window", "after the end", "false credit", "short", "fat"],
)
async def test_an_end_that_breaks_the_rules_is_cut_off(said: bytes) -> None:
    """I4: the host holds no more than the windows allow, whatever a guest sends."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    resting: list[Streams] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        resting.append((reader, writer))

    host = Multiplexer("host", accept=accept)
    await asyncio.get_running_loop().create_connection(lambda: host, sock=theirs)
    with ours:
        ours.sendall(said)
        async with asyncio.timeout(5):
            await host.closed


async def test_what_is_said_about_a_stream_that_is_over_is_passed_over() -> None:
    """A reset crosses with what the other side has just sent."""
    async with joined(Echo()) as guest:
        guest.emit(1, RESET)
        guest.emit(3, DATA, b"late")
        guest.emit(5, CREDIT, (5).to_bytes(4, "big"))
        assert await exchange(guest.open(), b"still here") == b"still here"


async def test_a_side_that_talks_and_never_reads_is_cut_off_and_not_answered_into_memory() -> None:
    """[C4]: refusals of streams and credits have no window of their own."""
    ours, theirs = socket.socketpair()
    most = 4
    host = Multiplexer("host", accept=lambda reader, writer: None, streams=most)
    theirs.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: host, sock=theirs)
    ours.setblocking(False)
    flood = b"".join(HEADER.pack(2 * number + 1, OPEN, 0) for number in range(20_000))
    highest = 0
    async with asyncio.timeout(20):
        while not host.closed.done():
            try:
                await asyncio.get_running_loop().sock_sendall(ours, flood)
            except OSError:
                break
            assert host._transport is not None
            highest = max(highest, host._transport.get_write_buffer_size())
        await host.closed
    assert highest <= 2 * most * WINDOW + PIECE
    ours.close()


async def test_bytes_that_come_one_by_one_are_not_credited_one_by_one() -> None:
    """A byte is a frame of ten, its credit would be one of thirteen."""
    ours, theirs = socket.socketpair()
    host = Multiplexer("host", accept=lambda reader, writer: None)
    for sock in (ours, theirs):
        sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: host, sock=theirs)
    async with asyncio.timeout(10):
        await loop.sock_sendall(ours, HEADER.pack(1, OPEN, 0) + (HEADER.pack(1, DATA, 1) + b"x") * (PIECE + 5))
        answer = await loop.sock_recv(ours, 1000)
        assert answer == HEADER.pack(1, CREDIT, 4) + PIECE.to_bytes(4, "big")
    host.close()
    await host.closed
    ours.close()


async def test_who_sends_on_to_a_side_that_has_closed_gets_its_last_words_and_is_reset() -> None:
    """As with sockets: a proxy that refuses a request doesn't read its body for ever."""

    def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no")
        writer.close()

    async with joined(refuse) as guest:
        reader, writer = guest.open()
        assert await reader.read() == b"no"
        with pytest.raises(ConnectionResetError):
            for _ in range(100):
                writer.write(bytes(PIECE))
                await writer.drain()
        small, last = guest.open()
        last.write(bytes(PIECE))
        await last.drain()
        assert await small.read() == b"no"
        last.close()
        await last.wait_closed()
