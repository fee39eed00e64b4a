"""One request and its reply, on ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from helmr.control.api.problems import PROBLEM_JSON, problem
from helmr.protocol.errors import HelmrError, InvalidRequest, RequestTooLarge
from helmr.protocol.ids import new_id

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HEADER_BYTES = 64 * 1024
"""The most that all headers of a request may be together."""

LINGER_BYTES = 64 * 1024 * 1024
LINGER_SECONDS = 5.0
"""How much of a refused body is taken, and how long, before the connection is closed."""

REPLY = "helmr.reply"
"""ASGI extension of our listener: takes status, headers and body of a whole reply, or says False while it must be sent as others are."""

JSON = b"application/json"
CLOSE = (b"connection", b"close")
CUT: Final = "helmr.cut"
"""ASGI extension of our listener: breaks off a reply whose reader is not waited for any longer."""
_NO_STORE = (b"cache-control", b"no-store")
_PRINTABLE = re.compile(rb"[ -~]{1,512}")
_READ_ONCE = frozenset(
    {
        b"authorization", b"idempotency-key", b"content-length", b"last-event-id", b"helmr-environment", b"host", b"origin", b"cookie",
        b"sec-fetch-site", b"user-agent", b"x-forwarded-for",
    }
)  # fmt: skip


class ClientGone(Exception):
    """The client ended the connection; nobody reads a reply."""


class Exchange:
    """Reads the request's headers once, its body at most once, and writes one reply."""

    __slots__ = ("begun", "head_only", "header", "receive", "request_id", "scope", "send", "started_at", "status", "unread")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.request_id = new_id()
        self.started_at = time.perf_counter()
        self.head_only = scope["method"] == "HEAD"
        self.begun = False
        self.unread = False
        """Whether a part of the body was left where it is; the connection can't be used again then."""
        self.status = 0
        self.header: dict[bytes, bytes] = {}

    def read_headers(self) -> None:
        """Keep the headers that we obey. Raises `InvalidRequest` when one stands twice or all are too long together."""
        size = 0
        kept = self.header
        for name, value in self.scope["headers"]:
            size += len(name) + len(value)
            if name == b"content-encoding" and value.strip().lower() != b"identity":
                raise InvalidRequest("This server takes no Content-Encoding: send the body as it is.")
            if name in _READ_ONCE:
                if name in kept:
                    raise InvalidRequest(f"The header {name.decode()} stands twice.")
                kept[name] = value
        if size > HEADER_BYTES:
            raise InvalidRequest(f"The headers are {size} bytes; at most {HEADER_BYTES} are allowed.")

    def bearer(self) -> str | None:
        """The bearer token, or None when there is none that could be valid."""
        value = self.header.get(b"authorization")
        if value is None or value[:7].lower() != b"bearer " or len(value) > 1024:
            return None
        token = value[7:].strip()
        return token.decode("ascii") if token and token.isascii() else None

    def idempotency_key(self) -> str | None:
        """The `Idempotency-Key`. Raises `InvalidRequest` unless it is 1 to 512 printable bytes [S4]."""
        value = self.header.get(b"idempotency-key")
        if value is None:
            return None
        if _PRINTABLE.fullmatch(value) is None:
            raise InvalidRequest("Idempotency-Key must be 1 to 512 printable ASCII characters.")
        return value.decode("ascii")

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises `RequestTooLarge` as soon as it is known to be over `limit` bytes, and `ClientGone`."""
        self._check_declared(limit)
        message = await self.receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            data: bytes = message.get("body", b"")
            self._check_size(len(data), limit)
            return data
        chunks = bytearray()
        while True:
            if message["type"] != "http.request":
                raise ClientGone
            chunks += message.get("body", b"")
            self.unread = bool(message.get("more_body"))
            self._check_size(len(chunks), limit)
            if not self.unread:
                return bytes(chunks)
            message = await self.receive()

    async def chunks(self, limit: int) -> AsyncIterator[bytes]:
        """The body piece by piece. Raises like `body`; a reader that sees the end has seen all."""
        self._check_declared(limit)
        self.unread = True
        size = 0
        while self.unread:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone
            data: bytes = message.get("body", b"")
            size += len(data)
            self.unread = bool(message.get("more_body"))
            self._check_size(size, limit)
            if data:
                yield data

    async def begin(self, status: int, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Send the status and the headers."""
        await self.send({"type": "http.response.start", "status": status, "headers": self._head(status, kind, headers)})

    async def reply(self, status: int, body: bytes, kind: bytes = JSON, *headers: tuple[bytes, bytes]) -> None:
        """Send a whole reply."""
        headers = ((b"content-length", b"%d" % len(body)), *headers)
        if not self.head_only and not self.unread:
            at_once: Callable[[int, list[tuple[bytes, bytes]], bytes], bool] | None = self.scope.get("extensions", {}).get(REPLY)
            if at_once is not None and at_once(status, self._head(status, kind, headers), body):
                return
        await self.begin(status, kind, *headers)
        if self.head_only:
            body = b""
        if self.unread:
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            await self._let_finish()
            body = b""
        await self.send({"type": "http.response.body", "body": body})

    async def refuse(self, error: HelmrError) -> None:
        """Send an error as a problem document."""
        status, body, headers = problem(error, self.request_id)
        await self.reply(status, body, PROBLEM_JSON, *headers)

    def _head(self, status: int, kind: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, bytes]]:
        self.begun = True
        self.status = status
        named = [(b"content-type", kind), _NO_STORE, (b"x-request-id", self.request_id.encode()), *headers]
        if self.unread:
            named.append(CLOSE)
        return named

    async def _let_finish(self) -> None:
        """Take the rest of the body, for a while, and forget it.

        To close on a client that still writes would reset the connection, and the client might never see the reply that was sent.
        """
        if any(name == b"expect" for name, _ in self.scope["headers"]):
            return  # it waited for leave, and has the reply instead
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0:
                    message = await self.receive()
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return
                    left -= len(message.get("body", b""))

    def cut(self) -> None:
        """Break the reply off, where the server can; else it does so once the application returns."""
        cut: Callable[[], None] | None = self.scope.get("extensions", {}).get(CUT)
        if cut is not None:
            cut()

    def _check_declared(self, limit: int) -> None:
        text = self.header.get(b"content-length")
        if text is not None and text.isdigit() and int(text) > limit:
            self.unread = True
            self._check_size(int(text), limit)

    def _check_size(self, size: int, limit: int) -> None:
        if size > limit:
            raise RequestTooLarge(f"The body is over {limit} bytes, the most that this operation takes.", limit=limit)
