"""The way out of a Computer: a loopback port whose connections go to hostd's egress proxy. SPEC [C4].

A process of its own, spawned by the supervisor and started again when it ends, so that bytes of the network never pass through pid 1. It
knows nothing of HTTP and decides nothing: who may be reached is the proxy's business, on the host. How a connection gets there is an
`Upward`: the proxy's unix socket where the guest can reach it, else streams over one socket that was passed in.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import socket
import sys
from typing import Final, Protocol

from helmr.guest.kernel import set_process_name
from helmr.protocol.egress import CONNECTIONS, PROXY_PORT
from helmr.protocol.multiplex import Multiplexer, Streams

_PUMP_BYTES: Final = 16 * 1024
_LIMIT: Final = 32 * 1024
"""What a connection's readers hold at most before they rest; twice that, with what a write brings."""
_BIND_SECONDS: Final = 1.0
EXIT_CHANNEL_GONE: Final = 73
"""The passed socket ended: the supervisor starts another forwarder once it has another."""


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
    """Streams over one socket, whose other end is hostd's."""

    def __init__(self, channel: Multiplexer) -> None:
        self._channel = channel

    async def open(self) -> Streams:
        return self._channel.open()


def main() -> None:
    """Entry point; runs until it is killed, or its channel ends."""
    parser = argparse.ArgumentParser(prog="helmr-forwarder")
    parser.add_argument("--port", type=int, default=PROXY_PORT)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--socket", help="the proxy's unix socket")
    way.add_argument("--descriptor", type=int, help="a socket whose other end takes streams to the proxy")
    options = parser.parse_args()
    set_process_name("helmr-forwarder")
    sys.exit(asyncio.run(_run(options.port, options.socket, options.descriptor)))


async def _run(port: int, path: str | None, descriptor: int | None) -> int:
    listener = await _listen(port)
    if path is not None:
        await Forwarder(SocketUpward(path), listener).serve()
        return 0
    channel = Multiplexer("guest", streams=CONNECTIONS)
    passed = socket.socket(fileno=descriptor)
    passed.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=passed)
    serving = asyncio.ensure_future(Forwarder(ChannelUpward(channel), listener).serve())
    await asyncio.wait((serving, channel.closed), return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    return EXIT_CHANNEL_GONE


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


async def _listen(port: int) -> socket.socket:
    """The loopback port, waited for while somebody else inside has it."""
    said = False
    while True:
        try:
            return socket.create_server(("127.0.0.1", port), backlog=CONNECTIONS)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if not said:
                print(f"helmr forwarder: port {port} is taken by another program; waiting for it", file=sys.stderr, flush=True)
                said = True
        await asyncio.sleep(_BIND_SECONDS)
