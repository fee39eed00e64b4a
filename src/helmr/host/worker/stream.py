"""A supervisor's stream, as the worker reads and writes it.

What the guest says is cut at whole frames and passed on; reading stops while the link is full or the Computer is over its allowance, so a
guest fills its own buffers and nobody else's (I4). The stream is never waited for on the way down: what the guest doesn't take is bounded.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, cast

from helmr.host.worker.cutter import FrameCutter
from helmr.host.worker.flow import DOWN_BYTES, Allowance
from helmr.protocol.frames import FrameError


class StreamEnd(Protocol):
    """Who owns a stream. Called in the event loop, never after `on_lost`."""

    def on_frames(self, frames: bytes) -> None:
        """Whole frames of Session processes, in order."""
        ...

    def on_own(self, payload: bytes) -> None:
        """The payload of a frame of the supervisor itself, in its place among the others. Raises `FrameError` to end the stream."""
        ...

    def on_lost(self, error: Exception | None) -> None:
        """The stream ended: None for an orderly end, `FrameError` when its bytes were no frames, else what broke it. Once."""
        ...


class SupervisorStream(asyncio.Protocol):
    """One stream's life: made, `open`ed on a socket, closed by either side."""

    def __init__(self, end: StreamEnd, loop: asyncio.AbstractEventLoop, congested: Callable[[], bool]) -> None:
        self._end: StreamEnd | None = end
        self._loop = loop
        self._congested = congested
        self._cutter = FrameCutter()
        self._allowance = Allowance(loop.time())
        self._transport: asyncio.Transport | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._paused = False

    async def open(self, sock: socket.socket) -> None:
        """Read and write on `sock`, which belongs to the stream from now on."""
        sock.setblocking(False)
        try:
            await self._loop.create_connection(lambda: self, sock=sock)
        except BaseException:
            sock.close()
            raise

    @property
    def paused(self) -> bool:
        """Whether what the guest says is left unread now."""
        return self._paused

    def write(self, frames: bytes) -> None:
        """Pass frames down as they are. A stream on which too much waits is lost instead."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > DOWN_BYTES:
            self._lose(TimeoutError(f"The supervisor left {DOWN_BYTES} bytes unread."))
            return
        transport.write(frames)

    def resume(self) -> None:
        """The link has room again."""
        if self._paused and self._resting is None and not self._congested():
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self) -> None:
        """Let go without a word: the owner hears nothing more, the supervisor sees the end and connects to hostd again."""
        self._end = None
        self._stop_resting()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods and not the type.
        self._transport = cast("asyncio.Transport", transport)
        if self._end is None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        end = self._end
        if end is None:
            return
        try:
            count, pieces = self._cutter.feed(data)
            for own, piece in pieces:
                if own:
                    end.on_own(piece)
                else:
                    end.on_frames(piece)
                if self._end is None:
                    return
        except FrameError as error:
            self._lose(error)
            return
        rest = self._allowance.take(count, self._loop.time())
        if rest > 0:
            self._resting = self._loop.call_later(rest, self._rested)
        if rest > 0 or self._congested():
            self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_resting()
        end, self._end = self._end, None
        if end is not None:
            end.on_lost(self._error or exc)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _rested(self) -> None:
        self._resting = None
        self.resume()

    def _stop_resting(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _lose(self, error: Exception) -> None:
        self._error = error
        if self._transport is not None:
            self._transport.abort()
