"""One connection of a client: our HTTP protocol, with bounds on what a client may leave unfinished.

uvicorn answers what is no HTTP with plain text, and waits for ever for the rest of a request. Here the answer is a problem document
(SPEC 11), a request's head is at most `HEAD_BYTES`, and a request must come at `LEAST_RATE` on average once `GRACE_SECONDS` are over.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from helmr.control.api.exchange import HEADER_BYTES, LINGER_SECONDS
from helmr.control.api.http_protocol import HttpProtocol
from helmr.control.api.link_protocol import LinkProtocol
from helmr.control.api.problems import PROBLEM_JSON, problem
from helmr.control.api.table import is_socket_path
from helmr.protocol.errors import HelmrError, InvalidRequest, RequestTooSlow
from helmr.protocol.ids import new_id

HEAD_BYTES: Final = HEADER_BYTES + 16 * 1024
"""Request line and headers of an unfinished head; a head that is whole is measured by `Exchange`, which names its size."""

GRACE_SECONDS: Final = 30.0
LEAST_RATE: Final = 1024
"""Bytes a second."""


class Connection(HttpProtocol):
    """Times are per connection and run only while a request is on its way: a whole request in one piece starts no timer."""

    grace_seconds = GRACE_SECONDS
    """A subclass of a test may be less patient."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._coming = True
        """Whether a request has begun, or is awaited for the first time, and is not whole."""
        self._in_head = True
        self._received = 0
        self._fresh = False
        """Whether a request began in the piece that is just being read."""
        self._refused = False
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        self._received = len(data) if self._fresh else self._received + len(data)
        self._fresh = False
        if not self._coming:
            if self._timer is not None:
                self._unwatch()
        elif self._in_head and self._received > HEAD_BYTES:
            self._refuse(InvalidRequest(f"The head of the request is over {HEAD_BYTES} bytes."))
        elif self._timer is None:
            self._watch()

    def on_message_begin(self) -> None:
        self._coming = self._in_head = self._fresh = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._coming = False
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._coming = False
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest("This is no HTTP request that the server can read."))

    def _should_upgrade(self) -> bool:
        """Only worker links and streams are WebSockets; anywhere else the wish is ignored, as HTTP allows, and the route answers."""
        parser = self.parser
        assert parser is not None
        if parser.get_method() != b"GET" or not is_socket_path(self.url.partition(b"?")[0]) or not super()._should_upgrade():
            return False
        return any(name == b"sec-websocket-key" for name, _ in self.headers)

    def _unsupported_upgrade_warning(self) -> None:
        """What a client would rather speak is no concern of the operator's."""

    # --- time -------------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._began = self.loop.time()
        self._timer = self.loop.call_later(self.grace_seconds, self._look)

    def _unwatch(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look(self) -> None:
        """The client's time is over, unless it sent enough, or what it sent waits for us."""
        self._timer = None
        if not self._coming or self.transport.is_closing():
            return
        if self.flow.read_paused:
            self._watch()
            self._received = 0
            return
        left = self._began + self.grace_seconds + self._received / LEAST_RATE - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._look)
        elif self._in_head and not self._received:
            self.transport.close()
        else:
            self._refuse(RequestTooSlow())

    # --- refusal ----------------------------------------------------------------------------------------------------------

    def _refuse(self, error: HelmrError) -> None:
        """Answer and end the connection; where another answer is due or under way, which this one would spoil, only end it."""
        self._coming = False
        self._unwatch()
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            if self.pipeline or cycle.response_started or not cycle.more_body:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_reply(error))
        self._linger()

    def _linger(self) -> None:
        """Take what still comes and forget it, until the client has seen the end: to close on it might cost it the reply."""
        self._refused = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


class LinkConnection(LinkProtocol):
    """Our WebSocket, to which a handshake that was refused is no fault to be logged."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


def _reply(error: HelmrError) -> bytes:
    request_id = new_id()
    status, body, headers = problem(error, request_id)
    named = [
        (b"content-type", PROBLEM_JSON),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
        *headers,
    ]
    line = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    return line + b"".join(b"%b: %b\r\n" % pair for pair in named) + b"\r\n" + body
