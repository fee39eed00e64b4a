"""The worker link over the network: one WebSocket to the control plane, a binary message for each link message.

The client half of `/v1/workers/link`. What is sent is queued, counted and written by one task, so that a slow network shows as
`queued_bytes` and never as waiting. A lost connection is told once; the worker connects anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import aiohttp
import structlog

from helmr.host.worker.credential import Credential, authorization
from helmr.host.worker.flow import LOW_WATER, MESSAGE_BYTES, OVERFLOW_BYTES
from helmr.host.worker.ports import LinkUnavailable, WorkerEnd
from helmr.protocol.link import Link, pack, take, unpack

_log = structlog.get_logger("helmr.worker.link")

CONNECT_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 5.0
"""What a close may take to hand over what was sent before it."""
HEARTBEAT_SECONDS: Final = 15.0
"""A control plane that doesn't answer a ping in half of this is lost."""


class WebSocketLinks:
    """Opens links with a worker credential, and owns their tasks until `stop`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, credential: Credential) -> None:
        self._session = session
        self._url = link_url(url)
        self._credential = credential
        self._links: dict[asyncio.Task[None], WebSocketLink] = {}

    async def connect(self, end: WorkerEnd) -> Link:
        """A new link whose messages go to `end`. Raises `LinkUnavailable`, with `refused` set when the credential was not taken."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await self._session.ws_connect(
                    self._url,
                    headers=authorization(self._credential),
                    max_msg_size=MESSAGE_BYTES,
                    heartbeat=HEARTBEAT_SECONDS,
                    compress=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),  # pyright: ignore[reportCallIssue]
                )
        except aiohttp.WSServerHandshakeError as error:
            refused = error.status in (401, 403)
            raise LinkUnavailable(f"The control plane answered {error.status} at {self._url}.", refused=refused) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LinkUnavailable(f"No control plane answers at {self._url}: {error or type(error).__name__}.") from error
        link = WebSocketLink(socket, end)
        task = asyncio.create_task(link.run(), name="worker-link")
        self._links[task] = link
        task.add_done_callback(self._ended)
        return link

    async def stop(self) -> None:
        """Close the links that are left and wait for their ends, which each link bounds itself. Idempotent."""
        for link in self._links.values():
            link.close("the worker stops")
        if self._links:
            await asyncio.wait(tuple(self._links))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("link.failed", exc_info=error)


class WebSocketLink:
    """An established link. `run` moves the messages; it returns when the link is over."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, end: WorkerEnd) -> None:
        self._socket = socket
        self._end = end
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._wake = asyncio.Event()
        self._open = True
        self._reason: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def send(self, message: bytes) -> None:
        if not self._open:
            return
        if self._queued > OVERFLOW_BYTES:
            _log.warning("link.overflow", queued_bytes=self._queued)
            self._lose()
            return
        self._queue.append(message)
        self._queued += len(message)
        self._wake.set()

    def close(self, reason: str = "") -> None:
        if self._open:
            self._open = False
            self._reason = reason
            self._wake.set()
            self._deadline = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._abort)

    @property
    def queued_bytes(self) -> int:
        return self._queued

    async def run(self) -> None:
        """Read and write until either end closes; then tell `on_closed`, unless it was this end that closed."""
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._read())
                writer = group.create_task(self._write())
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
                reader.cancel()
                writer.cancel()
        finally:
            self._queue.clear()
            self._queued = 0
            if self._deadline is not None:
                self._deadline.cancel()
            self._open = False
            if self._reason is None:
                self._end.on_closed()
            await self._hang_up()

    async def _hang_up(self) -> None:
        """Close the socket, in bounded time also for a peer that answers nothing."""
        reason = (self._reason or "").encode()[:120]
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.close(message=reason)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            _log.debug("link.close_failed", error=str(error))

    async def _read(self) -> None:
        async for message in self._socket:
            if not self._open:
                # Closed by us: what still comes is not delivered, but reading on lets the writer hand over its last messages.
                continue
            if message.type is not aiohttp.WSMsgType.BINARY:
                _log.warning("link.not_binary", kind=str(message.type))
                return
            try:
                messages = unpack(message.data)
            except ValueError as error:
                _log.warning("link.malformed", error=str(error))
                return
            for part in messages:
                self._end.on_message(part)

    async def _write(self) -> None:
        low = True
        while True:
            while self._queue:
                taken = take(self._queue)
                try:
                    await self._socket.send_bytes(pack(taken))
                except (aiohttp.ClientError, OSError) as error:
                    _log.info("link.write_failed", error=str(error) or type(error).__name__)
                    return
                self._queued -= sum(map(len, taken))
                if self._queued > LOW_WATER:
                    low = False
                elif not low:
                    low = True
                    self._end.on_drained()
            if not self._open:
                return
            self._wake.clear()
            await self._wake.wait()

    def _lose(self) -> None:
        """The peer takes nothing: drop what waits and let the writer end, which ends the link."""
        self._open = False
        self._queue.clear()
        self._wake.set()
        self._abort()

    def _abort(self) -> None:
        transport = self._socket.get_extra_info("transport")
        if transport is not None:
            transport.abort()


def link_url(url: str) -> str:
    """The WebSocket address of the link of the control plane at `url` (http, https, ws or wss)."""
    for http, websocket in (("http://", "ws://"), ("https://", "wss://")):
        if url.startswith(http):
            url = websocket + url[len(http) :]
    if not url.startswith(("ws://", "wss://")):
        raise ValueError(f"{url!r} is no http(s) address of a control plane.")
    return url.rstrip("/") + "/v1/workers/link"
