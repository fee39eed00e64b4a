"""Many byte streams over one socket, for Computers that can't connect to the host themselves. DESIGN 6 (gVisor).

A frame is `stream u32 | kind u8 | length u32 | payload`, big-endian. Either side may open streams; which numbers are its own is agreed by
`first`: the guest's are odd, the host's even. Each direction of a stream has a window: at most `WINDOW` bytes travel that the other side
has not said (`CREDIT`) it has consumed, so a reader that rests stops its own stream only. What breaks these rules ends the whole socket.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, cast

HEADER: Final = struct.Struct(">IBI")
WINDOW: Final = 64 * 1024
"""Bytes of one direction of a stream under way."""
PIECE: Final = 16 * 1024
"""The longest payload: streams take turns."""

OPEN, DATA, CREDIT, END, RESET = range(5)
_LONGEST: Final = (0, PIECE, 4, 0, 0)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class MultiplexError(Exception):
    """The other side broke the protocol."""


class Multiplexer(asyncio.Protocol):
    """One end. `accept` gets the reader and writer of each stream that the other side opens; without it none may be opened.

    Give it to `create_connection(lambda: multiplexer, sock=...)`. `closed` is done once the socket has ended.
    """

    def __init__(
        self,
        first: Literal["guest", "host"],
        *,
        accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any] | None = None,
        streams: int = 256,
    ) -> None:
        self._next = 1 if first == "guest" else 2
        self._accept = accept
        self._most = streams
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, _Stream] = {}
        self._buffer = bytearray()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def open(self) -> Streams:
        """A new stream. Raises `ConnectionError` when the socket has ended or too many are open."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("The channel has ended.")
        if len(self._streams) >= self._most:
            raise ConnectionError("Too many streams are open.")
        number, self._next = self._next, self._next + 2
        self.emit(number, OPEN)
        return self._begin(number).ends

    def close(self) -> None:
        """End the socket and every stream on it. Idempotent."""
        if self._transport is not None:
            self._transport.abort()

    # --- the socket ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            for number, kind, payload in self._frames():
                self._take(number, kind, payload)
        except MultiplexError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.lost(ConnectionResetError("The channel has ended."))
        if not self.closed.done():
            self.closed.set_result(None)

    # --- frames -------------------------------------------------------------------------------------------------------------

    def emit(self, number: int, kind: int, payload: bytes = b"") -> None:
        """Send one frame. Windows bound the data that waits to be written; for what else a side says that never reads the socket ends."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > 2 * self._most * WINDOW:
            self.close()
        else:
            self._transport.write(HEADER.pack(number, kind, len(payload)) + payload)

    def forget(self, number: int) -> None:
        """Both directions of the stream have ended."""
        self._streams.pop(number, None)

    def _begin(self, number: int) -> _Stream:
        stream = self._streams[number] = _Stream(self, number, self._loop)
        return stream

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                number, kind, length = HEADER.unpack_from(self._buffer, start)
                if kind > RESET or length > _LONGEST[kind] or (kind == CREDIT and length != _LONGEST[CREDIT]):
                    raise MultiplexError("a frame is malformed")
                body = start + HEADER.size
                if len(self._buffer) - body < length:
                    return
                start = body + length
                yield number, kind, bytes(self._buffer[body:start])
        finally:
            del self._buffer[:start]

    def _take(self, number: int, kind: int, payload: bytes) -> None:
        if kind == OPEN:
            self._opened(number)
            return
        stream = self._streams.get(number)
        if stream is None:
            return  # it was reset here, and the other side did not know yet
        if kind == DATA:
            stream.received(payload)
        elif kind == CREDIT:
            stream.credited(int.from_bytes(payload, "big"))
        elif kind == END:
            stream.ended()
        else:
            self.forget(number)
            stream.lost(ConnectionResetError("The other side ended the stream."))

    def _opened(self, number: int) -> None:
        if number == 0 or number % 2 == self._next % 2 or number in self._streams:
            raise MultiplexError("a stream has a number that is not its own")
        if self._accept is None or len(self._streams) >= self._most:
            self.emit(number, RESET)
            return
        self._accept(*self._begin(number).ends)


class _Stream(asyncio.Transport):
    """The transport below one stream's reader and writer."""

    def __init__(self, owner: Multiplexer, number: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._owner, self._number = owner, number
        self._reader = asyncio.StreamReader(limit=WINDOW, loop=loop)
        self._protocol = asyncio.StreamReaderProtocol(self._reader, loop=loop)
        self._window, self._unconsumed = WINDOW, 0
        self._held = bytearray()
        self._high = WINDOW
        self._resting = self._blocked = False
        self._ending = self._ended_here = self._ended_there = False
        self._closing = self._gone = False
        self._protocol.connection_made(self)
        self.ends: Streams = (self._reader, asyncio.StreamWriter(self, self._protocol, self._reader, loop))

    # --- from the other side ---

    def received(self, data: bytes) -> None:
        self._unconsumed += len(data)
        if self._ended_there or self._unconsumed > WINDOW:
            raise MultiplexError("a stream is over its window")
        if self._closing:
            if self._unconsumed >= 2 * PIECE:
                self.abort()  # it goes on though nobody hears it; the end of what it was about to say is no reason to
            return
        self._protocol.data_received(data)
        if not self._resting:
            self._consumed()

    def credited(self, count: int) -> None:
        self._window += count
        if self._window > WINDOW:
            raise MultiplexError("a credit is larger than what was sent")
        self._send()

    def ended(self) -> None:
        if not self._ended_there:
            self._ended_there = True
            if not self._closing:
                self._protocol.eof_received()
            self._settle()

    def lost(self, error: Exception | None) -> None:
        if not self._gone:
            self._gone = self._closing = True
            self._held.clear()
            self._protocol.connection_lost(error)

    # --- as a transport ---

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or self._ending:
            return
        self._held += data
        self._send()
        if len(self._held) > self._high and not self._blocked:
            self._blocked = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ending and not self._gone:
            self._ending = True
            self._send()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """After what was written. What still comes is dropped, and the other side is reset when that is much."""
        if not self._closing:
            self.write_eof()
            self._closing = True
            self.resume_reading()
            self._settle()

    def abort(self) -> None:
        if not self._gone:
            self._owner.emit(self._number, RESET)
            self._owner.forget(self._number)
            self.lost(None)

    def pause_reading(self) -> None:
        self._resting = not self._closing

    def resume_reading(self) -> None:
        self._resting = False
        self._consumed()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Writers rest above `high` bytes that wait here, until half of them is left."""
        self._high = WINDOW if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._held)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # --- details ---

    def _send(self) -> None:
        while self._held and self._window:
            piece = bytes(self._held[: min(PIECE, self._window)])
            del self._held[: len(piece)]
            self._window -= len(piece)
            self._owner.emit(self._number, DATA, piece)
        if self._blocked and len(self._held) <= self._high // 2:
            self._blocked = False
            self._protocol.resume_writing()
        if self._ending and not self._held and not self._ended_here:
            self._ended_here = True
            self._owner.emit(self._number, END)
            self._settle()

    def _consumed(self) -> None:
        """The reader takes on: what it was given counts as consumed, since it holds at most two windows before it rests.

        Said once a piece: the rest of the window is enough to go on with, and a byte at a time would be answered by thirteen.
        """
        if self._unconsumed >= PIECE and not self._ended_there and not self._gone:
            self._owner.emit(self._number, CREDIT, self._unconsumed.to_bytes(4, "big"))
            self._unconsumed = 0

    def _settle(self) -> None:
        if self._ended_there and self._ended_here:
            self._owner.forget(self._number)
            if self._closing:
                self.lost(None)
