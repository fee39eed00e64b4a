"""The worker link over a WebSocket: one end of `protocol.link`, with a bounded queue. DESIGN I4, I6."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import structlog

from helmr.control.api.problems import PROBLEM_JSON, problem
from helmr.protocol.errors import HelmrError, Unauthenticated
from helmr.protocol.ids import new_id

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from helmr.control.api.services import Services
    from helmr.protocol.link import LinkEnd

QUEUE_BYTES = 32 * 1024 * 1024
"""A link with more than so much unsent is cut: the worker says hello again and each Computer is attached anew, so nothing is lost."""

MESSAGE_BYTES = 4 * 1024 * 1024
"""The longest message that a worker may send."""

NORMAL, GOING_AWAY, UNSUPPORTED, POLICY, TOO_BIG, FAILED, RESTART = 1000, 1001, 1003, 1008, 1009, 1011, 1012

log = structlog.get_logger()


class WebSocketLink:
    """A `Link`: messages sent here are written in order by the task that owns the socket."""

    __slots__ = ("_closing", "_queue", "_queue_bytes", "_queued", "_waker")

    def __init__(self, queue_bytes: int = QUEUE_BYTES) -> None:
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._queue_bytes = queue_bytes
        self._waker = asyncio.Event()
        self._closing: tuple[int, str] | None = None

    def send(self, message: bytes) -> None:
        """Queue a message; dropped once the link closes. A full queue closes the link."""
        if self._closing is not None:
            return
        self._queued += len(message)
        if self._queued > self._queue_bytes:
            self.end(POLICY, "the worker takes too little")
            return
        self._queue.append(message)
        self._waker.set()

    def close(self, reason: str = "") -> None:
        """End the link after what is queued."""
        self.end(NORMAL, reason, drop=False)

    @property
    def queued_bytes(self) -> int:
        return self._queued

    def end(self, code: int, reason: str, *, drop: bool = True) -> None:
        """End the link with a close code; the first one counts. `drop` forgets what is queued."""
        if self._closing is None:
            self._closing = (code, reason[:100])
        if drop:
            self._queue.clear()
            self._queued = 0
        self._waker.set()

    async def write(self, send: Send) -> None:
        """Write what is queued until the link is closed; the close frame is the last."""
        while True:
            while self._queue:
                message = self._queue.popleft()
                await send({"type": "websocket.send", "bytes": message})
                self._queued -= min(len(message), self._queued)
            if self._closing is not None:
                code, reason = self._closing
                await send({"type": "websocket.close", "code": code, "reason": reason})
                return
            self._waker.clear()
            await self._waker.wait()


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
        """Close all links, so that their workers go to another control plane or come back."""
        self._draining = True
        for link in tuple(self._open):
            link.end(RESTART, "the control plane is stopping", drop=False)

    async def deny(self, error: HelmrError, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a handshake with a problem document, where the server can send one."""
        await receive()
        await _deny(error, scope, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handshake, then both directions until one side ends. `on_closed` is called exactly once for each link that was opened."""
        await receive()
        try:
            worker = await self._services.principals.authenticate_worker(_bearer(scope))
        except HelmrError as error:
            await _deny(error, scope, send)
            return
        await send({"type": "websocket.accept"})
        link = WebSocketLink()
        end = self._services.links.open(worker, link)
        self._open.add(link)
        try:
            if self._draining:
                link.end(RESTART, "the control plane is stopping")
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(link, send))
                await _read(receive, link, end, worker)
                writer.cancel()
        finally:
            self._open.discard(link)
            link.end(GOING_AWAY, "gone")
            end.on_closed()

    @staticmethod
    async def _write(link: WebSocketLink, send: Send) -> None:
        try:
            await link.write(send)
        except OSError as error:
            log.info("worker_link_broken", error=str(error))


async def _read(receive: Receive, link: WebSocketLink, end: LinkEnd, worker: str) -> None:
    """Hand over each message until the socket is gone."""
    while True:
        message = await receive()
        if message["type"] != "websocket.receive":
            return
        data = message.get("bytes")
        if data is None:
            link.end(UNSUPPORTED, "messages are binary")
        elif len(data) > MESSAGE_BYTES:
            link.end(TOO_BIG, "the message is too long")
        else:
            try:
                end.on_message(data)
            except Exception:
                log.exception("worker_link_message_failed", worker=worker)
                link.end(FAILED, "the message could not be handled")


def _bearer(scope: Scope) -> str:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) == 1 and values[0][:7].lower() == b"bearer " and values[0].isascii() and values[0][7:].strip():
        return values[0][7:].strip().decode("ascii")
    raise Unauthenticated(hint="A worker sends its credential as a bearer token.")


async def _deny(error: HelmrError, scope: Scope, send: Send) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY, "reason": error.code})
        return
    status, body, headers = problem(error, new_id())
    named = [(b"content-type", PROBLEM_JSON), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "websocket.http.response.start", "status": status, "headers": named})
    await send({"type": "websocket.http.response.body", "body": body})
