"""Server-sent events: ids on stored records only, heartbeats without id, an end that says so, and no patience with slow readers. [E4]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from helmr.control.api.exchange import Exchange
from helmr.control.api.presence import Draining, Presence

if TYPE_CHECKING:
    from helmr.control.api.services import Record

EVENT_STREAM = b"text/event-stream; charset=utf-8"
RETRY_MILLISECONDS = 1000
WRITE_BYTES = 64 * 1024
"""Records are written together up to so much; a longer record goes alone."""

END = b"event: end\ndata: {}\n\n"
_RETRY = b"retry: %d\n\n" % RETRY_MILLISECONDS
_HEARTBEAT = b": heartbeat\n\n"


class SlowReader(Exception):
    """The reader took nothing for too long; it is dropped, and catches up from the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTiming:
    """`heartbeat_seconds`: silence before a comment is sent. `patience_seconds`: how long one write may wait for the reader.
    `grace_seconds`: how long a stream's beginning waits for its first piece, so that a refusal has a status of its own.
    """

    heartbeat_seconds: float = 15.0
    patience_seconds: float = 30.0
    grace_seconds: float = 0.25


async def record_frames(batches: AsyncIterator[Sequence[Record]]) -> AsyncGenerator[bytes, None]:
    """Each stored record as one event; ends with `event: end`, which carries no id. An empty batch is an empty piece."""
    async with ending(batches):
        async for batch in batches:
            piece: list[bytes] = []
            size = 0
            for record in batch:
                frame = b"id: %d\ndata: %b\n\n" % (record.sequence, record.body)
                if size and size + len(frame) > WRITE_BYTES:
                    yield b"".join(piece)
                    piece, size = [], 0
                piece.append(frame)
                size += len(frame)
            yield b"".join(piece)
    yield END


@asynccontextmanager
async def ending(iterator: AsyncIterator[Any]) -> AsyncGenerator[None, None]:
    """End an iterator of a service as soon as its reader ends, where it can be ended; not at some collection."""
    try:
        yield
    finally:
        if isinstance(iterator, AsyncGenerator):
            await cast("AsyncGenerator[Any, None]", iterator).aclose()


class EventStream:
    """A reply that goes on: pieces of whole events. What is refused before the reply began is still a problem document."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    async def send(self, exchange: Exchange, presence: Presence, timing: StreamTiming) -> None:
        """Raises `SlowReader` once the reader is dropped, `ClientGone` when it left, `Draining` when no stream begins any more."""
        async with aclosing(self._pieces) as pieces:
            try:
                await presence.during(exchange, _Pump(exchange, timing).run(pieces))
            except Draining:
                # The reader sees the reply end without `event: end`, and comes again.
                if not exchange.begun:
                    raise
            await exchange.send({"type": "http.response.body", "body": b""})


class _Pump:
    """Writes pieces as fast as the reader takes them, holds none back, and watches the clock beside it."""

    __slots__ = ("_exchange", "_last", "_loop", "_since", "_timing", "_turn")

    def __init__(self, exchange: Exchange, timing: StreamTiming) -> None:
        self._exchange = exchange
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._last = self._loop.time()
        self._since: float | None = None
        """Since when a write waits for the reader."""

    async def run(self, pieces: AsyncIterator[bytes]) -> None:
        async with asyncio.TaskGroup() as group:
            clock = group.create_task(self._watch_clock())
            async for piece in pieces:
                await self._write(piece)
            clock.cancel()

    async def _write(self, data: bytes) -> None:
        if not data and self._exchange.begun:
            return
        async with self._turn:
            self._since = self._loop.time()
            if not self._exchange.begun:
                await self._exchange.begin(200, EVENT_STREAM, (b"x-accel-buffering", b"no"))
                data = _RETRY + data
            await self._exchange.send({"type": "http.response.body", "body": data, "more_body": True})
            self._since = None
            self._last = self._loop.time()

    async def _watch_clock(self) -> None:
        await asyncio.sleep(self._timing.grace_seconds)
        await self._write(b"")
        while True:
            now = self._loop.time()
            if self._since is not None:
                due = self._since + self._timing.patience_seconds
                if now >= due:
                    raise SlowReader
            else:
                due = self._last + self._timing.heartbeat_seconds
                if now >= due:
                    await self._beat()
                    continue
            await asyncio.sleep(due - now)

    async def _beat(self) -> None:
        try:
            async with asyncio.timeout(self._timing.patience_seconds):
                await self._write(_HEARTBEAT)
        except TimeoutError:
            raise SlowReader from None
