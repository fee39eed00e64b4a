"""Streams to supervisors that can't connect by themselves: the driver passes each in. Beside `RunSocket`, in its place [I4]."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

Make = Callable[[float], Awaitable[socket.socket]]
"""A new stream that the supervisor has taken, within so many seconds. Raises `TimeoutError`."""


class PassedStreams:
    """Knows the stream that a worker has, and can end it. A guest's end of an ended stream is closed by the guest itself."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._made = asyncio.Event()
        self._parked: socket.socket | None = None
        self._handed: socket.socket | None = None

    def open(self) -> None:
        """There is nothing to listen on."""

    async def close(self) -> None:
        """Close what is ours. A stream that was taken goes on. Idempotent."""
        for stream in (self._parked, self._handed):
            if stream is not None:
                stream.close()
        self._parked = self._handed = None

    async def prepare(self, seconds: float) -> None:
        """Have a stream ready for the next `take`: the supervisor answers. Raises `TimeoutError`."""
        async with self._making:
            self._parked = await self._make(seconds)
            self._made.set()

    async def take(self, seconds: float) -> socket.socket:
        """A stream for a worker, cutting off the worker that has one now. Raises `TimeoutError`."""
        async with self._making:
            self.cut_off()
            stream, self._parked = self._parked, None
            if stream is None:
                stream = await self._make(seconds)
                self._made.set()
            self._handed = stream.dup()
            return stream

    async def precede(self, seconds: float) -> None:
        """Return once there was a stream, or after so long: for what is to be passed in after it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._made.wait()

    def cut_off(self) -> None:
        """End the stream that was taken last."""
        self._end(self._handed)
        self._handed = None

    def cut_all(self) -> None:
        """End every stream, so that the guest closes its ends."""
        self.cut_off()
        self._end(self._parked)
        self._parked = None

    def _end(self, stream: socket.socket | None) -> None:
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()
