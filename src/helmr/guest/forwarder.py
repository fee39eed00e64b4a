"""The way out of a Computer: a loopback port whose connections go to hostd's egress proxy. SPEC [C4].

A process of its own, spawned by the supervisor and started again when it ends, so that bytes of the network never pass through pid 1. It
knows nothing of HTTP and decides nothing: who may be reached is the proxy's business, on the host. How a connection gets there is an
`Upward`: the proxy's unix socket where the guest can reach it, else streams over a socket that hostd passed in. Between two of those, as
while the Computer wakes, connections wait.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
from typing import Final, Protocol

from helmr.guest.kernel import set_process_name
from helmr.protocol.egress import CHANNEL_WORD, CONNECTIONS
from helmr.protocol.multiplex import Multiplexer, Streams

_PUMP_BYTES: Final = 16 * 1024
_LIMIT: Final = 32 * 1024
"""What a connection's readers hold at most before they rest; twice that, with what a write brings."""
CHANNEL_SECONDS: Final = 20.0
"""How long a connection waits for a channel that isn't there."""


class Upward(Protocol):
    """How a connection inside reaches the proxy."""

    async def open(self) -> Streams:
        """A stream to the proxy. Raises `OSError` when there is none to be had."""
        ...


class SocketUpward:
    """A connection to the proxy's unix socket for each stream."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def open(self) -> Streams:
        return await asyncio.open_unix_connection(self._path, limit=_LIMIT)


class ChannelUpward:
    """Streams over the newest socket that was taken, whose other end is hostd's."""

    def __init__(self, *, patience: float = CHANNEL_SECONDS) -> None:
        self._patience = patience
        self._channel: Multiplexer | None = None
        self._there = asyncio.Event()

    async def take(self, passed: socket.socket) -> None:
        """Go on with `passed`, in place of the one before, whose streams end."""
        channel = Multiplexer("guest", streams=CONNECTIONS)
        passed.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=passed)
        former, self._channel = self._channel, channel
        if former is not None:
            former.close()
        self._there.set()
        channel.closed.add_done_callback(lambda _: self._gone(channel))

    async def open(self) -> Streams:
        async with asyncio.timeout(self._patience):
            while self._channel is None:
                await self._there.wait()
        return self._channel.open()

    def _gone(self, channel: Multiplexer) -> None:
        if self._channel is channel:
            self._channel = None
            self._there.clear()


def main() -> None:
    """Entry point; runs until it is killed, or who passes channels in is gone."""
    parser = argparse.ArgumentParser(prog="helmr-forwarder")
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the port's listening socket")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--socket", help="the proxy's unix socket")
    way.add_argument("--descriptor", type=int, help="a socket by which channels to the proxy are passed in")
    options = parser.parse_args()
    set_process_name("helmr-forwarder")
    asyncio.run(_run(socket.socket(fileno=options.listener), options.socket, options.descriptor))


async def _run(listener: socket.socket, path: str | None, descriptor: int | None) -> None:
    if path is not None:
        await Forwarder(SocketUpward(path), listener).serve()
        return
    above = ChannelUpward()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(Forwarder(above, listener).serve())
        await _take_channels(socket.socket(fileno=descriptor), above)
        serving.cancel()


async def _take_channels(giver: socket.socket, above: ChannelUpward) -> None:
    """Until its other end is closed."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    giver.setblocking(False)
    loop.add_reader(giver, ready.set)
    while True:
        await ready.wait()
        ready.clear()
        try:
            word, passed, _, _ = socket.recv_fds(giver, len(CHANNEL_WORD), 1)
        except BlockingIOError:
            continue
        if not word:
            return
        for descriptor in passed:
            await above.take(socket.socket(fileno=descriptor))


class Forwarder:
    """Takes connections on `listener` as long as `serve` runs, which ends them. Beyond `CONNECTIONS` they are closed at once."""

    def __init__(self, upward: Upward, listener: socket.socket) -> None:
        self._upward = upward
        self._listener = listener
        self._open: set[asyncio.Task[None]] = set()
        self._unreachable = False

    async def serve(self) -> None:
        server = await asyncio.start_server(self._take, sock=self._listener, limit=_LIMIT)
        try:
            async with server:
                await server.serve_forever()
        finally:
            for task in self._open:
                task.cancel()
            if self._open:
                await asyncio.wait(self._open)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass  # by `serve` alone: asyncio's stream server would report it as a fault
        finally:
            self._open.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            above = await self._upward.open()
        except OSError as error:
            if not self._unreachable:
                self._unreachable = True
                print(f"helmr forwarder: the egress proxy can't be reached: {error}", file=sys.stderr, flush=True)
            return
        self._unreachable = False
        try:
            await asyncio.gather(_pump(reader, above[1]), _pump(above[0], writer))
        except OSError:
            # One side has reset: so does the other, instead of an end that looks orderly.
            writer.transport.abort()
            above[1].transport.abort()
        finally:
            above[1].close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_PUMP_BYTES):
        sink.write(data)
        await sink.drain()
    with contextlib.suppress(OSError):  # it has ended by itself
        sink.write_eof()
