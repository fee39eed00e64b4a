"""HTTP on one connection: uvicorn's protocol on httptools, with a shorter way from a request to its reply. DESIGN 7 (W1, W2).

Parsing, pipelining, upgrades, flow control and shutdown are uvicorn's. Ours are: a whole reply leaves in one write, a connection has one
timer for its idleness instead of one for each reply, and those who wait are called when their client goes, without a task that watches.
A connection works on its next request only once its client has taken the replies before it, so that it holds one reply, not a pipeline.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from helmr.control.api.exchange import CUT, REPLY
from helmr.control.api.presence import ON_GONE
from helmr.control.api.unsent import Unsent

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

JOINED_BYTES: Final = 64 * 1024
"""A longer body is written by itself: copying it would cost more than a system call."""


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client, or the beginning of a worker's link."""

    unsent = Unsent()
    """What all connections of the process hold for readers that are slow."""

    _touched_at = 0.0
    _running: _Cycle | None = None
    """The last request that was begun; later ones may wait in the pipeline."""
    _defaults: list[tuple[bytes, bytes]] | None = None
    _default_lines = b""

    @property
    def default_lines(self) -> bytes:
        """The headers that each reply has; uvicorn makes them anew each second."""
        headers = self.server_state.default_headers
        if headers is not self._defaults:
            self._defaults = headers
            self._default_lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._default_lines

    def connection_lost(self, exc: Exception | None) -> None:
        self.unsent.discard(self.transport)
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn tells the request that came last, which in a pipeline is not the one that is being answered.
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        if running is not None and running.disconnected and running.gone is not None:
            running.gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unsent.add(self.transport, self._running.written if self._running is not None else 0)

    def resume_writing(self) -> None:
        self.unsent.discard(self.transport)
        super().resume_writing()
        if self._running is not None and self._running.response_complete and not self.transport.is_closing():
            self._go_on()

    def on_headers_complete(self) -> None:
        """Start the application on a request whose body may still be coming."""
        parser, scope = self.parser, cast("dict[str, Any]", self.scope)
        assert parser is not None
        version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        if parser.should_upgrade() and self._should_upgrade():
            return
        url: Any = cast("Any", httptools).parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        before, app = self._running, cast("Any", self).app
        cycle = _Cycle(self, keep_alive=version != "1.0" and parser.should_keep_alive())
        scope["extensions"] = {ON_GONE: cycle.on_gone, REPLY: cycle.reply, CUT: cycle.cut}
        self.cycle = cycle
        if not self.pipeline and (before is None or before.response_complete) and not self.flow.write_paused:
            self._begin(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    def on_response_complete(self) -> None:
        """Called when a whole reply was written, whether its reader took it or not."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing() and not self.flow.write_paused:
            self._go_on()

    def _go_on(self) -> None:
        """Go on with the next request, if it came already; else the connection is idle."""
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if self.pipeline:
            self._begin(*cast("tuple[_Cycle, Any]", self.pipeline.pop()))
        elif self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def handle_websocket_upgrade(self) -> None:
        self.unsent.discard(self.transport)
        super().handle_websocket_upgrade()

    def _begin(self, cycle: _Cycle, app: Any) -> None:
        self._running = cycle
        self._start_asgi_task(cycle, app)

    def _unset_keepalive_if_required(self) -> None:
        """Called at each sign of life: the timer stays, and finds out when it rings."""
        self._touched_at = self.loop.time()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for so long."""
        self.timeout_keep_alive_task = None
        if self.transport.is_closing():
            return
        cycle = cast("_Cycle | None", self.cycle)
        busy = cycle is not None and not cycle.response_complete
        left = self.timeout_keep_alive - (self.loop.time() - self._touched_at)
        if busy or left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(max(left, 1.0), self.timeout_keep_alive_handler)
        else:
            self.transport.close()


class _Cycle(RequestResponseCycle):
    """A request and its reply. A reply of known length is held until its body comes, and leaves with it."""

    def __init__(self, protocol: HttpProtocol, *, keep_alive: bool) -> None:
        super().__init__(
            scope=protocol.scope,
            transport=protocol.transport,
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=protocol.expect_100_continue,
            keep_alive=keep_alive,
            on_response=protocol.on_response_complete,
        )
        self._protocol = protocol
        self._head = b""
        self.written = 0
        """Bytes of the last piece that was given to the transport."""
        self.gone: Callable[[], None] | None = None

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` when the client goes before the reply is complete, soon if it has; None ends that."""
        self.gone = callback
        if callback is not None and self.disconnected:
            self._protocol.loop.call_soon(callback)

    def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """A whole reply in one call, `content-length` among its headers. False while the client takes too little: then `send` waits."""
        if self.disconnected:
            return True
        if self.flow.write_paused:
            return False
        if self.response_started:
            raise RuntimeError("A reply has begun, and another was sent.")
        self._begin(status, headers)
        self._continue(body, False)
        return True

    def cut(self) -> None:
        """Break the reply off: nothing more of it is sent, also not what still waits for its reader."""
        self.disconnected = True
        self.transport.abort()

    async def send(self, message: ASGISendEvent) -> None:
        """ASGI's `send`. Raises `RuntimeError` for messages out of order, wrong lengths and headers that break the framing."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        told = cast("dict[str, Any]", message)
        if not self.response_started:
            self._expect(told, "http.response.start")
            self._begin(told["status"], told.get("headers", ()))
        elif not self.response_complete:
            self._expect(told, "http.response.body")
            self._continue(told.get("body", b""), bool(told.get("more_body", False)))
            if self.flow.write_paused and not self.response_complete:
                # Whoever makes the next piece holds it; better not to make it yet.
                await self.flow.drain()
        else:
            raise RuntimeError(f"The reply is complete, and {told['type']} was sent.")

    def _expect(self, message: dict[str, Any], kind: str) -> None:
        if message["type"] != kind:
            raise RuntimeError(f"{kind} was expected, and {message['type']} was sent.")

    def _begin(self, status: int, headers: Any) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        parts = [STATUS_LINE[status], self._protocol.default_lines]
        count = 2
        for name, value in headers:
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection":
                self.keep_alive = self.keep_alive and value.lower() != b"close"
                continue
            parts += (name, b": ", value, b"\r\n")
            count += 1
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
            count += 1
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            parts.append(b"transfer-encoding: chunked\r\n")
            count += 1
        parts.append(b"\r\n")
        head = b"".join(parts)
        ends = count + len(self._protocol.server_state.default_headers)
        if head.count(b"\n") != ends or head.count(b"\r") != ends:
            raise RuntimeError("A header holds the end of a line.")
        if self.chunked_encoding is False:
            self._head = head
        else:
            self.transport.write(head)

    def _continue(self, body: bytes, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self.chunked_encoding and len(body) > JOINED_BYTES:
            self.written = len(body)
            for part in (b"%x\r\n" % len(body), body, b"\r\n" if more else b"\r\n0\r\n\r\n"):
                self.transport.write(part)
            body = b""
        elif self.chunked_encoding:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("The body is longer than its content-length.")
        head, self._head = self._head, b""
        if head and len(body) > JOINED_BYTES:
            self.transport.write(head)
        elif head:
            body = head + body
        if body:
            self.written = len(body)
            self.transport.write(body)
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("The body is shorter than its content-length.")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
