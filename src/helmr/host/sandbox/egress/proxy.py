"""The filtering proxy: one per sandbox, in hostd, on a unix socket. Names are resolved here and nowhere else."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from helmr.host.sandbox.egress.addresses import Address
from helmr.host.sandbox.egress.request import HEAD_BYTES, BadRequest, ProxyRequest, read_request
from helmr.host.sandbox.egress.rules import Decision, EgressPolicy, Reason
from helmr.host.sandbox.egress.upstream import Streams, Upstream

PUMP_BYTES: Final = 1 << 16

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
FindUpstream = Callable[[str, int], Upstream | None]

_PHRASES: Final = {400: "Bad Request", 403: "Forbidden", 408: "Request Timeout", 431: "Request Header Fields Too Large", 502: "Bad Gateway"}


async def resolve(host: str, port: int) -> Sequence[Address]:
    """All addresses of a name, by the host's resolver. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]


def no_upstream(host: str, port: int) -> None:
    """Everything is dialled directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """`socket` is made by the proxy; whoever can reach it may use it, so its folder must be private to the sandbox."""

    socket: Path
    policy: EgressPolicy
    on_decision: Callable[[Decision], None]
    resolve: Resolve = resolve
    upstream: FindUpstream = no_upstream
    head_seconds: float = 30.0
    connect_seconds: float = 30.0
    connections: int = 256


@dataclass(slots=True)
class EgressProxy:
    """A Service: `start`, then idempotent `stop`, which ends every exchange at once.

    Each connection carries one request: a CONNECT tunnel or one plain HTTP exchange. The address that was checked is the one dialled;
    a redirect is the client's next request and is judged like any other.
    """

    config: ProxyConfig
    _server: asyncio.Server | None = field(default=None, init=False)
    _open: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"], init=False)

    async def start(self) -> None:
        listener = _listen(self.config.socket)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=HEAD_BYTES)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await server.wait_closed()
        self.config.socket.unlink(missing_ok=True)

    async def __aenter__(self) -> EgressProxy:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if len(self._open) <= self.config.connections:
                await self._serve(reader, writer)
        except (asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
            # Cancelled by `stop` alone: asyncio's stream server would report it as a fault. Others: one side has left.
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self.config.head_seconds):
                request = await read_request(reader)
            streams = await self._dial(request)
        except BadRequest as error:
            await _refuse(writer, error.status, str(error))
            return
        except TimeoutError:  # of the head alone: `_dial` makes a refusal of its own
            await _refuse(writer, 408, "The request did not come in time.")
            return
        try:
            if request.path is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _tunnel((reader, writer), streams)
            else:
                streams[1].write(request.head())
                await _exchange((reader, writer), streams, request)
        finally:
            streams[1].close()

    async def _dial(self, request: ProxyRequest) -> Streams:
        host, port, policy = request.host, request.port, self.config.policy
        if not policy.permits_name(host, port):
            raise self._deny(request, "not_listed", 403, f"{host}:{port} is not in the allow-list of this sandbox.")
        upstream = self.config.upstream(host, port)
        if upstream is not None and policy.exempts_name(host, port):
            return await self._connect(request, None, lambda: upstream.connect(host, port))
        try:
            addresses = await self.config.resolve(host, port)
        except OSError as error:
            raise self._deny(request, "unresolved", 502, f"{host} can't be resolved: {error.strerror or error}.") from None
        permitted = policy.permitted(host, addresses, port)
        if not permitted:
            raise self._deny(request, "private_address", 403, f"{host}:{port} is no public address and the operator made no exception.")
        failure: BadRequest | None = None
        for address in permitted[:4]:
            text = str(address)
            try:
                if upstream is not None:
                    return await self._connect(request, text, lambda text=text: upstream.connect(text, port))
                return await self._connect(request, text, lambda text=text: asyncio.open_connection(text, port, limit=HEAD_BYTES))
            except BadRequest as error:
                failure = error
        assert failure is not None
        raise failure

    async def _connect(self, request: ProxyRequest, address: str | None, connect: Callable[[], Awaitable[Streams]]) -> Streams:
        try:
            async with asyncio.timeout(self.config.connect_seconds):
                streams = await connect()
        except OSError as error:
            text = f"{request.host}:{request.port} can't be reached: {error.strerror or error or 'no answer in time'}."
            raise self._deny(request, "unreachable", 502, text, address) from None
        self.config.on_decision(Decision(host=request.host, port=request.port, allowed=True, reason="allowed", address=address))
        return streams

    def _deny(self, request: ProxyRequest, reason: Reason, status: int, text: str, address: str | None = None) -> BadRequest:
        self.config.on_decision(Decision(host=request.host, port=request.port, allowed=False, reason=reason, address=address))
        return BadRequest(status, text)


def _listen(path: Path) -> socket.socket:
    """A socket at `path`, however long that is: the address of a unix socket has room for 107 bytes, a folder's descriptor for any path."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o666)  # ids inside are others than ours; the folder around it is the guard
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


async def _refuse(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    body = f"helmr egress: {text}\n".encode()
    head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()


async def _tunnel(client: Streams, origin: Streams) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_until_end(_pump(client[0], origin[1])))
        group.create_task(_until_end(_pump(origin[0], client[1])))


async def _exchange(client: Streams, origin: Streams, request: ProxyRequest) -> None:
    """Exactly one request goes up, whatever else the client sends; the answer comes down until the origin closes."""
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(_until_end(_send_body(client[0], origin[1], request.length)))
        await _until_end(_pump(origin[0], client[1]))
        sending.cancel()


async def _until_end(pump: Awaitable[None]) -> None:
    try:
        await pump
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        return  # one side has left or broke its framing: the other one sees the end of the stream


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(PUMP_BYTES):
            sink.write(data)
            await sink.drain()
    finally:
        if sink.can_write_eof() and not sink.is_closing():
            sink.write_eof()


async def _send_body(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int | None) -> None:
    if length is not None:
        await _send(source, sink, length)
        return
    while True:
        line = await source.readuntil(b"\r\n")
        size = int(line[:-2].partition(b";")[0], 16)
        if size < 0 or not line[:1].isalnum():
            raise ValueError("The chunk has no size.")
        sink.write(b"%x\r\n" % size)
        if size == 0:
            break
        await _send(source, sink, size)
        if await source.readexactly(2) != b"\r\n":
            raise ValueError("The chunk is longer than it said.")
        sink.write(b"\r\n")
    while await source.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers are nobody's business
    sink.write(b"\r\n")
    await sink.drain()


async def _send(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int) -> None:
    while length:
        data = await source.read(min(length, PUMP_BYTES))
        if not data:
            raise ConnectionResetError
        length -= len(data)
        sink.write(data)
        await sink.drain()
