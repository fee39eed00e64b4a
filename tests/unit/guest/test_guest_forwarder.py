"""The forwarder's two ways up: a unix socket, and streams over one passed socket. [C4]"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from helmr.guest.forwarder import ChannelUpward, Forwarder, SocketUpward, Upward
from helmr.guest.forwarding import Forwarding
from helmr.guest.polling import guest_loop
from helmr.host.sandbox.egress import PROXY_ENVIRONMENT
from helmr.protocol.egress import CONNECTIONS, PROXY_VARIABLES
from helmr.protocol.multiplex import Multiplexer, Streams

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
    above, theirs = ChannelUpward(), socket.socketpair()
    host = await shouting(theirs[0], tasks)
    await above.take(theirs[1])
    yield above
    host.close()
    await host.closed


async def shouting(ours: socket.socket, tasks: set[asyncio.Task[None]]) -> Multiplexer:
    """hostd's end of a channel."""
    host = Multiplexer("host", accept=lambda *ends: tasks.add(asyncio.ensure_future(shout(*ends))))
    ours.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: host, sock=ours)
    return host


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


class Asked:
    """An `Upward` that says when it was asked."""

    def __init__(self, above: Upward) -> None:
        self.above, self.asked = above, asyncio.Event()

    async def open(self) -> Streams:
        self.asked.set()
        return await self.above.open()


async def test_connections_wait_for_the_next_channel_and_end_when_none_comes() -> None:
    """[C6]: as while a Computer wakes, whose programs go on before hostd has passed a channel."""
    above, tasks = ChannelUpward(), set[asyncio.Task[None]]()
    listener = socket.create_server(("127.0.0.1", 0))
    way = Asked(above)
    serving = asyncio.ensure_future(Forwarder(way, listener).serve())
    async with asyncio.timeout(10):
        for text in (b"one", b"two"):
            way.asked.clear()
            waiting = asyncio.ensure_future(said(listener.getsockname()[1], text))
            await way.asked.wait()
            ours, theirs = socket.socketpair()
            host = await shouting(ours, tasks)
            await above.take(theirs)
            assert await waiting == text.upper()
            host.close()
            while above._channel is not None:
                await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait((serving,))
    with pytest.raises(TimeoutError):
        await ChannelUpward(patience=0.01).open()


def test_a_forwarder_takes_channel_after_channel_and_one_that_was_killed_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 6: for guests that can't reach a socket of the host; spawned as the supervisor does."""
    for name in PROXY_VARIABLES:
        monkeypatch.setenv(name, "")
    with asyncio.Runner(loop_factory=guest_loop) as runner:
        runner.run(passed_thrice())


async def passed_thrice() -> None:
    import helmr

    forwarding = Forwarding(str(Path(helmr.__file__).parents[1]), None, port=0)
    port = forwarding._listener.getsockname()[1]
    tasks: set[asyncio.Task[None]] = set()
    pids: list[int] = []
    async with asyncio.timeout(30):
        forwarding.start()
        for killed in (False, True, False):
            ours, theirs = socket.socketpair()
            host = await shouting(ours, tasks)
            forwarding.adopt(theirs)
            assert await said(port, b"through") == b"THROUGH"
            process = forwarding._process
            assert process is not None
            pids.append(process.pid)
            if killed:
                process.kill()
                await host.closed  # its channel went with it
                assert await asyncio.to_thread(process.wait) == -9
                assert forwarding.ended(process.pid, -9) and not forwarding.ended(process.pid, 0)
            else:
                host.close()
                await host.closed
        assert pids[0] == pids[1] != pids[2]
        last, giver = forwarding._process, forwarding._giver
        assert last is not None and giver is not None
        giver.close()
        assert await asyncio.to_thread(last.wait) == 0, "without a supervisor it ends"
    forwarding._listener.close()
