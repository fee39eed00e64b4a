"""Shells and tunnels of clients: a WebSocket each, joined to a stream of the Computer. SPEC [C8], [C6]; `protocol/streams.py`.

The handshake is refused for who asks only; all else is said on the open socket, as a word `refused` with the problem document, since
clients of WebSockets can't read the body of a refused handshake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from helmr.control.api.credentials import principal_of
from helmr.control.api.dispatch import query_values
from helmr.control.api.problems import problem
from helmr.control.api.reading import body_reader, query_reader
from helmr.control.api.requests import ForwardQuery, Nothing, OpenShell
from helmr.control.api.table import STREAM_PATH
from helmr.control.api.worker_link import bearer, deny
from helmr.control.service.stream_run import failure_of
from helmr.protocol import jsontext, streams
from helmr.protocol.errors import (
    AuthoringError,
    ComputerNotFound,
    Forbidden,
    HelmrError,
    InternalError,
    InvalidRequest,
    Refused,
    RequestTimedOut,
    RouteNotFound,
    ShuttingDown,
    StreamBroken,
)
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.streams import PIECE_BYTES, WORD_BYTES, StreamError
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from helmr.control.api.services import Services, Stream
    from helmr.control.service.principals import Principal

PERMISSION: Final = "computers.exec"
OPENING_SECONDS: Final = 10.0
"""How long a client of a shell may take to say which."""
DONE, REFUSED, GOING_AWAY = 1000, 1008, 1001

log = structlog.get_logger()


class ClientLeft(Exception):
    """The client ended the socket."""


class Sockets:
    """The sockets that are open on this control plane."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: set[asyncio.Task[Any]] = set()
        self._draining = False

    def drain(self) -> None:
        """End all, and those that still come: their clients are told, and connect again if they want to."""
        self._draining = True
        for task in tuple(self._open):
            task.cancel()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One socket, from its handshake to its end."""
        await receive()
        found = STREAM_PATH.fullmatch(scope["path"])
        try:
            if found is None:
                raise RouteNotFound()
            if self._draining:
                raise ShuttingDown()
            token = bearer(scope, "Send the API key as a bearer token.")
            principal = await principal_of(self._services, token, dict(scope["headers"]).get(b"helmr-environment"))
            if PERMISSION not in principal.permissions:
                raise Forbidden(f"This credential lacks the permission {PERMISSION}.", permission=PERMISSION)
            if not is_id(found[1]):
                raise ComputerNotFound()
        except HelmrError as error:
            await deny(error, scope, send)
            return
        socket = _Socket(receive, send)
        task = asyncio.create_task(self._run(socket, scope, principal, found[1], found[2]))
        self._open.add(task)
        try:
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
        finally:
            self._open.discard(task)
            task.cancel()
        if task.cancelled():
            await socket.refuse(ShuttingDown(), GOING_AWAY)

    async def _run(self, socket: _Socket, scope: Scope, principal: Principal, computer_id: str, kind: str) -> None:
        try:
            await socket.accept()
            query = query_values(scope["query_string"])
            if kind == "shell":
                query_reader(Nothing)(query)
                opening = await socket.opening()
            else:
                opening = {"port": query_reader(ForwardQuery)(query).port}
            await self._join(socket, principal, computer_id, cast("Any", kind), opening)
        except (ClientLeft, OSError):
            return
        except StreamError as error:
            await socket.refuse(InvalidRequest(f"The socket's client broke its protocol: {error}."))
        except (Refused, AuthoringError, RequestTimedOut) as error:
            await socket.refuse(error)
        except Exception:
            log.exception("socket_failed", kind=kind)
            await socket.refuse(InternalError())

    async def _join(self, socket: _Socket, principal: Principal, computer_id: str, kind: Any, opening: Mapping[str, Any]) -> None:
        """Until either side ends. Whatever ends it, the stream is closed and no task is left."""
        reading = asyncio.create_task(socket.hear())
        opening_ = asyncio.create_task(self._services.streams.open(principal, computer_id, kind, opening))
        writing: asyncio.Task[None] | None = None
        try:
            await asyncio.wait([opening_, reading], return_when=asyncio.FIRST_COMPLETED)
            if not opening_.done():
                reading.result()
            stream = opening_.result()
            socket.joined(stream)
            writing = asyncio.create_task(socket.tell(stream))
            await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
            (writing if writing.done() else reading).result()
        finally:
            tasks = [task for task in (reading, opening_, writing) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if not opening_.cancelled() and opening_.exception() is None:
                self._services.streams.close(opening_.result())


class _Socket:
    """The client's socket."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._stream: Stream | None = None
        self._early: list[bytes | Mapping[str, Any]] = []
        self._early_bytes = 0
        self._closed = False

    async def accept(self) -> None:
        await self._send({"type": "websocket.accept"})

    async def opening(self) -> Mapping[str, Any]:
        """The first word of a shell's client. Raises what is wrong with it, and `RequestTimedOut`."""
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                said = await self._message()
        except TimeoutError:
            raise RequestTimedOut("The client did not say which shell it wants.") from None
        if isinstance(said, bytes):
            raise StreamError("its first message opens the shell")
        shell: OpenShell = body_reader(OpenShell)(dict(said), "")
        opening: dict[str, Any] = {"rows": shell.rows, "columns": shell.columns}
        if shell.argv:
            opening["argv"] = list(shell.argv)
        if shell.cwd is not UNSET:
            opening["cwd"] = shell.cwd
        if shell.env is not UNSET:
            opening["env"] = dict(shell.env)
        return opening

    def joined(self, stream: Stream) -> None:
        """What the client said before is said now."""
        self._stream = stream
        for message in self._early:
            self._pass_on(stream, message)
        self._early.clear()

    async def hear(self) -> None:
        """Pass on what the client says until it leaves: `ClientLeft`, or breaks the protocol: `StreamError`."""
        while True:
            message = await self._message()
            if self._stream is not None:
                self._pass_on(self._stream, message)
                continue
            self._early.append(message)
            self._early_bytes += len(message) if isinstance(message, bytes) else WORD_BYTES // 16
            if self._early_bytes > streams.WINDOW_BYTES:
                raise StreamError("more was sent than may wait")

    async def tell(self, stream: Stream) -> None:
        """Say what the Computer says, to the end."""
        while True:
            message = await stream.receive()
            if message is None:
                raise stream.error or StreamBroken()
            if isinstance(message, bytes):
                await self._send({"type": "websocket.send", "bytes": message})
            elif message["t"] == "failed":
                raise failure_of(message)
            else:
                await self._say(jsontext.dumps(message))
                if message["t"] in ("exit", "done"):
                    await self._close(DONE, message["t"])
                    return

    async def refuse(self, error: HelmrError, code: int = REFUSED) -> None:
        """Say why it ends. The client may be gone."""
        status, body, _ = problem(error, new_id())
        try:
            await self._say(b'{"t":"refused","status":%d,"problem":%b}' % (status, body))
            await self._close(code, error.code)
        except OSError as gone:
            log.info("socket_broken", error=str(gone) or type(gone).__name__)

    async def _say(self, text: bytes) -> None:
        if not self._closed:
            await self._send({"type": "websocket.send", "text": text.decode()})

    async def _close(self, code: int, reason: str) -> None:
        if not self._closed:
            self._closed = True
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def _message(self) -> bytes | Mapping[str, Any]:
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self._closed = True
            raise ClientLeft
        data, text = message.get("bytes"), message.get("text")
        if data is not None:
            if len(data) > PIECE_BYTES:
                raise StreamError(f"a piece of {len(data)} bytes is too long")
            return cast("bytes", data)
        return streams.read_word(cast("str", text).encode())

    def _pass_on(self, stream: Stream, message: bytes | Mapping[str, Any]) -> None:
        if isinstance(message, bytes):
            stream.send(message)
            return
        match message["t"]:
            case "credit":
                stream.taken(streams.whole(message, "bytes", streams.WINDOW_BYTES))
            case "eof":
                stream.say("eof")
            case "resize":
                stream.say("resize", rows=streams.whole(message, "rows", 10_000), columns=streams.whole(message, "columns", 10_000))
            case kind:
                raise StreamError(f"the word {kind[:40]!r} is not for a stream")
