"""The filtering proxy: one per sandbox, in hostd, on a unix socket. Names are resolved here and nowhere else.

Tunnels are opaque, but for those to origins of protected Secrets, which `Inspection` says [X1].
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

from helmr.host.sandbox.egress.activity import InFlight, Passage, in_flight
from helmr.host.sandbox.egress.addresses import Address
from helmr.host.sandbox.egress.inspection import Inspection, Unprepared
from helmr.host.sandbox.egress.interception import Interception
from helmr.host.sandbox.egress.lookups import Lookups
from helmr.host.sandbox.egress.protected import OriginSecrets
from helmr.host.sandbox.egress.relay import PUMP_BYTES, pump, relay_response, send_body
from helmr.host.sandbox.egress.request import HEAD_BYTES, BadRequest, ProxyRequest, read_request
from helmr.host.sandbox.egress.rules import Decision, EgressPolicy, Reason
from helmr.host.sandbox.egress.tls import TlsStream, secure
from helmr.host.sandbox.egress.upstream import Streams, Upstream
from helmr.protocol.egress import CONNECTIONS

BUFFER_BYTES: Final = HEAD_BYTES
"""What a connection's buffers hold, each, before its source rests: with both directions some 256 KiB a connection."""
RESOLVE_SECONDS: Final = 20.0
LEFT_SECONDS: Final = 60.0
"""How long an answer is still brought to a client that has closed its half of the connection."""

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
FindUpstream = Callable[[str, int], Upstream | None]

_PHRASES: Final = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
T = TypeVar("T")


def no_upstream(host: str, port: int) -> None:
    """Everything is dialled directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """`socket` is made by the proxy; whoever can reach it may use it, so its folder must be private to the sandbox. None: connections are
    brought to `serve`."""

    socket: Path | None
    policy: EgressPolicy
    on_decision: Callable[[Decision], None]
    resolve: Resolve = field(default_factory=Lookups)
    upstream: FindUpstream = no_upstream
    head_seconds: float = 30.0
    connect_seconds: float = 30.0
    connections: int = CONNECTIONS
    inspection: Inspection | None = None
    """What is decrypted; None: nothing."""


@dataclass(slots=True)
class EgressProxy:
    """A Service: `start`, then idempotent `stop`, which ends every exchange at once.

    Each connection carries one request: a CONNECT tunnel or one plain HTTP exchange. The address that was checked is the one dialled;
    a redirect is the client's next request and is judged like any other.
    """

    config: ProxyConfig
    _server: asyncio.Server | None = field(default=None, init=False)
    _serving: bool = field(default=False, init=False)
    _open: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"], init=False)
    _passages: dict[int, Passage] = field(default_factory=dict[int, Passage], init=False)

    def in_flight(self) -> InFlight:
        """What of the sandbox's requests has not ended [C6]."""
        return in_flight(self._passages.values(), monotonic())

    async def start(self) -> None:
        self._serving = True
        if self.config.socket is not None:
            listener = _listen(self.config.socket)
            self._server = await asyncio.start_unix_server(self.serve, sock=listener, limit=BUFFER_BYTES)

    async def stop(self) -> None:
        self._serving = False
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if server is not None:
            await server.wait_closed()
        if server is not None and self.config.socket is not None:
            self.config.socket.unlink(missing_ok=True)

    async def __aenter__(self) -> EgressProxy:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the sandbox, however it came here."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        writer.transport.set_write_buffer_limits(BUFFER_BYTES)
        try:
            if len(self._open) <= self.config.connections:
                await self._serve(reader, writer)
            else:
                await _refuse(writer, 503, f"{self.config.connections} connections are open already.")
        except (asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
            # Cancelled by `stop` alone: asyncio's stream server would report it as a fault. Others: one side has left.
            pass
        finally:
            self._open.discard(task)
            self._passages.pop(id(task), None)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inspection = self.config.inspection
        try:
            async with asyncio.timeout(self.config.head_seconds):
                request = await read_request(reader)
            passage = self._passages[id(asyncio.current_task())] = Passage(tunnel=request.path is None, moved_at=monotonic())
            found = await self._secrets(request)
            if found is not None and inspection is not None:
                with inspection.watching(found):
                    await self._intercept((reader, writer), request, found, inspection)
                return
            streams = await self._dial(request, _as_it_is)
        except BadRequest as error:
            await _refuse(writer, error.status, str(error))
            return
        except TimeoutError:  # of the head alone: `_dial` makes a refusal of its own
            await _refuse(writer, 408, "The request did not come in time.")
            return
        try:
            if request.path is None:
                writer.write(_ESTABLISHED)
                await _tunnel((reader, writer), streams, passage)
            else:
                streams[1].write(request.head())
                await _exchange((reader, writer), streams, request)
        finally:
            streams[1].close()

    async def _secrets(self, request: ProxyRequest) -> OriginSecrets | None:
        """What is exchanged on the way to where the request goes; None: nothing, and it stays as it is. Raises `BadRequest`."""
        host, port = request.host, request.port
        if self.config.inspection is None or request.path is not None or not self.config.policy.permits_name(host, port):
            return None
        try:
            return await self.config.inspection.at(host, port)
        except Unprepared as error:
            raise self._deny(request, "unprepared", 503, str(error)) from None

    async def _intercept(self, client: Streams, request: ProxyRequest, found: OriginSecrets, inspection: Inspection) -> None:
        """Decrypt it, between two handshakes: the origin's first, so that one that isn't trusted is refused as such [X1]."""
        host, port, task = request.host, request.port, id(asyncio.current_task())

        async def secured(streams: Streams) -> TlsStream:
            return await secure(TlsStream(streams, inspection.upstream(), server=False, hostname=host))

        def passing(passage: Passage | None) -> None:
            self._passages.pop(task, None)
            if passage is not None:
                self._passages[task] = passage

        def misdirected() -> None:
            self._note(request, "misdirected")

        await inspection.pace.turn()
        origin = await self._dial(request, secured)
        try:
            client[1].write(_ESTABLISHED)
            async with asyncio.timeout(self.config.head_seconds):
                guest = await secure(TlsStream(client, inspection.context(host), server=True))
        except OSError as error:
            origin.abort()
            if isinstance(error, ssl.SSLError):  # it asked for another name, or doesn't trust this proxy
                misdirected()
            return
        except BaseException:
            origin.abort()
            raise
        await Interception(
            guest=guest,
            origin=origin,
            secrets=found,
            host=host,
            port=port,
            head_seconds=self.config.head_seconds,
            passing=passing,
            exchanged=lambda names: inspection.exchanged(found.origin, names),
            misdirected=misdirected,
        ).run()

    async def _dial(self, request: ProxyRequest, finish: Callable[[Streams], Awaitable[T]]) -> T:
        """Raises `BadRequest`."""
        host, port, policy = request.host, request.port, self.config.policy
        if not policy.permits_name(host, port):
            raise self._deny(request, "not_listed", 403, f"{host}:{port} is not in the allow-list of this sandbox.")
        upstream = self.config.upstream(host, port)
        if upstream is not None and policy.exempts_name(host, port):
            return await self._connect(request, None, lambda: upstream.connect(host, port), finish)
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                addresses = await self.config.resolve(host, port)
        except OSError as error:
            why = error.strerror or error or "no answer in time"
            raise self._deny(request, "unresolved", 502, f"{host} can't be resolved: {why}.") from None
        permitted = policy.permitted(host, addresses, port)
        if not permitted:
            raise self._deny(request, "private_address", 403, f"{host}:{port} is no public address and the operator made no exception.")
        failure: BadRequest | None = None
        for address in permitted[:4]:
            text = str(address)
            try:
                if upstream is not None:
                    return await self._connect(request, text, lambda text=text: upstream.connect(text, port), finish)
                return await self._connect(request, text, lambda text=text: _dialled(text, port), finish)
            except BadRequest as error:
                failure = error
        assert failure is not None
        raise failure

    async def _connect(
        self,
        request: ProxyRequest,
        address: str | None,
        connect: Callable[[], Awaitable[Streams]],
        finish: Callable[[Streams], Awaitable[T]],
    ) -> T:
        try:
            async with asyncio.timeout(self.config.connect_seconds):
                streams = await connect()
                streams[1].transport.set_write_buffer_limits(BUFFER_BYTES)
                made = await finish(streams)
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or error
            text = f"{request.host}:{request.port} is not trusted with the Secret that belongs there: {why}."
            raise self._deny(request, "untrusted", 502, text, address) from None
        except OSError as error:
            text = f"{request.host}:{request.port} can't be reached: {error.strerror or error or 'no answer in time'}."
            raise self._deny(request, "unreachable", 502, text, address) from None
        self.config.on_decision(Decision(host=request.host, port=request.port, allowed=True, reason="allowed", address=address))
        return made

    def _deny(self, request: ProxyRequest, reason: Reason, status: int, text: str, address: str | None = None) -> BadRequest:
        self._note(request, reason, address)
        return BadRequest(status, text)

    def _note(self, request: ProxyRequest, reason: Reason, address: str | None = None) -> None:
        self.config.on_decision(Decision(host=request.host, port=request.port, allowed=False, reason=reason, address=address))


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


async def _dialled(address: str, port: int) -> Streams:
    reader, writer = await asyncio.open_connection(address, port, limit=BUFFER_BYTES)
    dialled: socket.socket = writer.get_extra_info("socket")
    dialled.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # an origin that vanished must not keep the Computer awake
    return reader, writer


async def _as_it_is(streams: Streams) -> Streams:
    return streams


async def _tunnel(client: Streams, origin: Streams, passage: Passage) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_until_end(pump(client[0], origin[1], lambda: passage.moved("guest", monotonic()))))
        group.create_task(_until_end(pump(origin[0], client[1], lambda: passage.moved("origin", monotonic()))))


async def _exchange(client: Streams, origin: Streams, request: ProxyRequest) -> None:
    """Exactly one request goes up, whatever else the client sends, and its one answer comes down."""
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(_until_end(send_body(client[0], origin[1], request.length)))
        receiving = group.create_task(_until_end(relay_response(origin[0], client[1], request.method)))
        leaving = group.create_task(_until_left(client[0], sending))
        await asyncio.wait((receiving, leaving), return_when=asyncio.FIRST_COMPLETED)
        for task in (sending, receiving, leaving):
            task.cancel()


async def _until_left(client: asyncio.StreamReader, sending: asyncio.Task[None]) -> None:
    """Return once the client has nothing more to say and `LEFT_SECONDS` are over: most have left by then, some only closed their half."""
    await asyncio.wait((sending,))
    while await client.read(PUMP_BYTES):
        continue  # what follows the one request is nobody's
    await asyncio.sleep(LEFT_SECONDS)


async def _until_end(pump: Awaitable[None]) -> None:
    try:
        await pump
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        return  # one side has left or broke its framing: the other one sees the end of the stream
