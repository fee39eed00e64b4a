"""The worker link over a WebSocket: one end of `protocol.link`, with a bounded queue. DESIGN I4, I6."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import structlog

from helmr.control.api.problems import PROBLEM_JSON, problem
from helmr.protocol.errors import HelmrError, ShuttingDown, Unauthenticated
from helmr.protocol.ids import new_id
from helmr.protocol.link import pack, take, unpack

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from helmr.control.api.services import Services
    from helmr.protocol.link import LinkEnd

QUEUE_BYTES = 64 * 1024 * 1024
"""A link with more than so much unsent is cut: the worker says hello again and each Computer is attached anew, so nothing is lost."""

MESSAGE_BYTES = 16 * 1024 * 1024
"""The longest message that a worker may send."""

CODE_HEADER = b"helmr-error"
"""The code of a refused handshake, beside its problem document: few clients of WebSockets can read the body of that."""

CLOSE_SECONDS = 1.0
"""How long a cut link may take to say why."""

NORMAL, GOING_AWAY, UNSUPPORTED, POLICY, TOO_BIG, FAILED, RESTART = 1000, 1001, 1003, 1008, 1009, 1011, 1012

log = structlog.get_logger()


class WebSocketLink:
    """A `Link`: messages sent here are written in order by the task that owns the socket."""

    __slots__ = ("_closing", "_queue", "_queue_bytes", "_queued", "_said_closed", "_waker", "closed_here", "cut")

    def __init__(self, queue_bytes: int = QUEUE_BYTES) -> None:
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._queue_bytes = queue_bytes
        self._waker = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self._said_closed = False
        self.closed_here = False
        """Whether our own end asked for the close; it isn't told of it then."""
        self.cut = asyncio.Event()
        """Set when the link must end without writing what is queued."""

    def send(self, message: bytes) -> None:
        """Queue a message; dropped once the link closes. A full queue cuts the link."""
        if self._closing is not None:
            return
        self._queued += len(message)
        if self._queued > self._queue_bytes:
            self.end(POLICY, "the worker takes too little")
            return
        self._queue.append(message)
        self._waker.set()

    def close(self, reason: str = "") -> None:
        """End the link after what is queued. Nothing is delivered here from now on."""
        self.closed_here = self.closed_here or self._closing is None
        self._begin_closing(NORMAL, reason)

    @property
    def queued_bytes(self) -> int:
        return self._queued

    @property
    def closing(self) -> tuple[int, str] | None:
        """Code and reason of the close, once there is one; the first counts."""
        return self._closing

    def end(self, code: int, reason: str) -> None:
        """End the link now and forget what is queued."""
        self._begin_closing(code, reason)
        self._queue.clear()
        self._queued = 0
        self.cut.set()

    async def write(self, send: Send) -> None:
        """Write what is queued until the link is closed; the close frame is the last."""
        while True:
            while self._queue:
                taken = take(self._queue)
                await send({"type": "websocket.send", "bytes": pack(taken)})
                self._queued -= min(sum(map(len, taken)), self._queued)
            if self._closing is not None:
                await self.say_closed(send)
                return
            self._waker.clear()
            await self._waker.wait()

    async def say_closed(self, send: Send) -> None:
        """Send the close frame, once."""
        if self._said_closed:
            return
        self._said_closed = True
        code, reason = self._closing or (NORMAL, "")
        await send({"type": "websocket.close", "code": code, "reason": reason})

    def _begin_closing(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = (code, reason.encode()[:100].decode("utf-8", errors="ignore"))
            self._waker.set()


class WorkerLinks:
    """The links that are open on this control plane."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: set[WebSocketLink] = set()
        self._draining = False

    @property
    def open(self) -> int:
        return len(self._open)

    def drain(self) -> None:
        """End all links, and those that still come, so that their workers go to another control plane or come back."""
        self._draining = True
        for link in tuple(self._open):
            link.end(RESTART, "the control plane is stopping")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handshake, then both directions until one side ends.

        `on_closed` is called once for each link that was opened, unless its own end closed it. Nothing is delivered after either.
        """
        await receive()
        try:
            if self._draining:
                raise ShuttingDown()
            worker = await self._services.principals.authenticate_worker(bearer(scope, "A worker sends its credential as a bearer token."))
        except HelmrError as error:
            await deny(error, scope, send)
            return
        try:
            await send({"type": "websocket.accept"})
        except OSError as error:
            log.info("worker_link_broken", error=str(error) or type(error).__name__)
            return
        link = WebSocketLink()
        end = self._services.links.open(worker, link)
        self._open.add(link)
        try:
            await _run(link, end, worker, receive, send)
        finally:
            self._open.discard(link)
            link.end(GOING_AWAY, "gone")
            if not link.closed_here:
                end.on_closed()


async def _run(link: WebSocketLink, end: LinkEnd, worker: str, receive: Receive, send: Send) -> None:
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(_read(receive, link, end, worker))
        writing = group.create_task(_write(link, send))
        cutting = group.create_task(link.cut.wait())
        tasks = (reading, writing, cutting)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    if link.cut.is_set():
        await _say_cut(link, send)


async def _say_cut(link: WebSocketLink, send: Send) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await link.say_closed(send)
    except (OSError, TimeoutError) as error:
        log.info("worker_link_broken", error=str(error) or type(error).__name__)


async def _write(link: WebSocketLink, send: Send) -> None:
    try:
        await link.write(send)
    except OSError as error:
        log.info("worker_link_broken", error=str(error) or type(error).__name__)


async def _read(receive: Receive, link: WebSocketLink, end: LinkEnd, worker: str) -> None:
    """Hand over each message until the socket is gone. After a close, reading goes on so that the peer's own close is seen."""
    while True:
        message = await receive()
        if message["type"] != "websocket.receive":
            return
        if link.closing is not None:
            continue
        data = message.get("bytes")
        if data is None:
            link.end(UNSUPPORTED, "messages are binary")
        elif len(data) > MESSAGE_BYTES:
            link.end(TOO_BIG, "the message is too long")
        else:
            try:
                for part in unpack(data):
                    end.on_message(part)
            except Exception:
                log.exception("worker_link_message_failed", worker=worker)
                link.end(FAILED, "the message could not be handled")


def bearer(scope: Scope, hint: str) -> str:
    """The credential of a handshake. Raises `Unauthenticated`."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) == 1 and values[0][:7].lower() == b"bearer " and values[0].isascii() and values[0][7:].strip():
        return values[0][7:].strip().decode("ascii")
    raise Unauthenticated(hint=hint)


async def deny(error: HelmrError, scope: Scope, send: Send) -> None:
    """Refuse a handshake with a problem document, where the server can send one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY, "reason": error.code})
        return
    status, body, headers = problem(error, new_id())
    named = [(CODE_HEADER, error.code.encode()), (b"content-type", PROBLEM_JSON), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "websocket.http.response.start", "status": status, "headers": named})
    await send({"type": "websocket.http.response.body", "body": body})
