"""The forwarder's two ways up: a unix socket, and streams over one passed socket. [C4]"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from helmr.guest.forwarder import EXIT_CHANNEL_GONE, ChannelUpward, Forwarder, SocketUpward, Upward
from helmr.guest.forwarding import Forwarding
from helmr.guest.polling import guest_loop
from helmr.host.sandbox.egress import PROXY_ENVIRONMENT
from helmr.protocol.egress import CONNECTIONS, PROXY_VARIABLES
from helmr.protocol.multiplex import Multiplexer

pytestmark = pytest.mark.anyio


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers the whole of what came, once its half has ended."""
    writer.write((await reader.read()).upper())
    writer.close()


@asynccontextmanager
async def upward(kind: str, folder: Path) -> AsyncIterator[Upward]:
    if kind == "socket":
        async with await asyncio.start_unix_server(shout, folder / "p.sock"):
            yield SocketUpward(str(folder / "p.sock"))
        return
    tasks: set[asyncio.Task[None]] = set()
    ends = [Multiplexer("guest"), Multiplexer("host", accept=lambda *ends: tasks.add(asyncio.ensure_future(shout(*ends))))]
    for end, sock in zip(ends, socket.socketpair(), strict=True):
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda end=end: end, sock=sock)
    yield ChannelUpward(ends[0])
    for end in ends:
        end.close()
        await end.closed


@asynccontextmanager
async def forwarding(kind: str, folder: Path) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    async with upward(kind, folder) as above:
        serving = asyncio.ensure_future(Forwarder(above, listener).serve())
        try:
            async with asyncio.timeout(10):
                yield listener.getsockname()[1]
        finally:
            serving.cancel()
            await asyncio.wait((serving,))


async def said(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("kind", ["socket", "channel"])
async def test_connections_reach_the_proxy_by_either_way(kind: str, tmp_path: Path) -> None:
    async with forwarding(kind, tmp_path) as port:
        texts = [b"a" * 300_000, b"b", b""]
        assert await asyncio.gather(*(said(port, text) for text in texts)) == [text.upper() for text in texts]


async def test_without_a_proxy_a_connection_ends_and_the_next_one_is_tried_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As between two hostds, or without a lease; the log says it once."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    serving = asyncio.ensure_future(Forwarder(SocketUpward(str(tmp_path / "p.sock")), listener).serve())
    async with asyncio.timeout(10):
        assert [await closed(port) for _ in range(2)] == [b"", b""]
        async with await asyncio.start_unix_server(shout, tmp_path / "p.sock"):
            assert await said(port, b"here") == b"HERE"
    serving.cancel()
    await asyncio.wait((serving,))
    assert capsys.readouterr().err.count("can't be reached") == 1


async def closed(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_what_is_more_than_a_computer_may_have_is_closed_at_once(tmp_path: Path) -> None:
    async with forwarding("socket", tmp_path) as port:
        open_now = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        for _, writer in open_now:
            writer.write(b"x")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        for _, other in [(reader, writer), *open_now]:
            other.close()


def test_build_steps_and_computers_are_told_the_same_proxy() -> None:
    """[C4]: the forwarder of build steps is one file without imports, so it has these texts of its own."""
    assert dict(PROXY_VARIABLES) == PROXY_ENVIRONMENT


def test_a_forwarder_serves_a_socket_that_was_passed_in_and_the_next_one_after_it(tmp_path: Path) -> None:
    """DESIGN 6: for guests that can't reach a socket of the host; spawned as the supervisor does."""
    with asyncio.Runner(loop_factory=guest_loop) as runner:
        runner.run(passed_twice())


async def passed_twice() -> None:
    import helmr

    port = free_port()
    forwarding = Forwarding(str(Path(helmr.__file__).parents[1]), None, port=port)
    tasks: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        for _ in range(2):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            host = Multiplexer("host", accept=lambda *ends: tasks.add(asyncio.ensure_future(shout(*ends))))
            await loop.create_connection(lambda host=host: host, sock=ours)
            forwarding.adopt(theirs)
            assert await eventually_said(port, b"through") == b"THROUGH"
            process = forwarding._process
            assert process is not None
            host.close()
            await host.closed
            assert await asyncio.to_thread(process.wait) == EXIT_CHANNEL_GONE
            assert forwarding.ended(process.pid, EXIT_CHANNEL_GONE) and not forwarding.ended(process.pid, 0)


async def eventually_said(port: int, text: bytes) -> bytes:
    """A program that is just starting gives no event when it listens."""
    while True:
        try:
            if answer := await said(port, text):
                return answer
        except ConnectionError:
            pass
        await asyncio.sleep(0.02)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
