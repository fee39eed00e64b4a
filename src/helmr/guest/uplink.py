"""The supervisor's stream to its host: connects again and again, writes what is queued in one go, reads frames. I6."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from typing import Final

from helmr.guest.polling import READ, WRITE, running_guest_loop
from helmr.protocol.frames import PROTOCOL, Frame, FrameError, FrameReader

FIRST_RETRY_SECONDS: Final = 0.05
LAST_RETRY_SECONDS: Final = 1.0
CONGESTED_BYTES: Final = 1024 * 1024
"""More than this waiting to be written: nothing more is read from channels until half of it is gone."""

_READ: Final = 64 * 1024
_HELLO: Final = json.dumps({"hello": "supervisor", "protocol": PROTOCOL}).encode() + b"\n"


class Uplink:
    """Owned by the supervisor. `path` None: streams are passed in, by `adopt`. `on_connected` may send the stream's first frame;
    `on_frames` gets what one read brought; `on_lost` says that what was queued is gone; `on_room` that it is no longer congested."""

    def __init__(
        self,
        path: str | None,
        *,
        on_connected: Callable[[], None],
        on_frames: Callable[[list[Frame]], None],
        on_lost: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self._path = path
        self._loop = running_guest_loop()
        self._loop.before_asking(self._before_asking)
        self._on_connected, self._on_frames, self._on_lost, self._on_room = on_connected, on_frames, on_lost, on_room
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._ready: list[bytes] = []
        self._unsent = memoryview(b"")
        self._queued = 0
        self._was_congested = False
        self._retry = FIRST_RETRY_SECONDS

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted and not yet written."""
        return self._queued

    @property
    def congested(self) -> bool:
        return self._queued > CONGESTED_BYTES

    def connect(self) -> None:
        """Try now, and later again until it works. Nothing where streams are passed in."""
        if self._path is None:
            return
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.connect(self._path)
        except OSError:
            connection.close()
            self._loop.call_later(self._retry, self.connect)
            self._retry = min(self._retry * 2, LAST_RETRY_SECONDS)
            return
        self._begin(connection, _HELLO)

    def adopt(self, connection: socket.socket) -> None:
        """Go on with a stream that the host passed in, in place of the one before. It needs no greeting: the host knows whom it gave it."""
        if self._socket is not None:
            self.close()
            self._on_lost()
        connection.setblocking(False)
        self._begin(connection, b"")

    def _begin(self, connection: socket.socket, greeting: bytes) -> None:
        self._socket = connection
        self._reader = FrameReader()
        self._loop.attend(connection.fileno(), READ, self._on_ready)
        if greeting:
            self.send(greeting)
        self._on_connected()

    def send(self, data: bytes) -> None:
        """Queue bytes; what one pass of the event loop queues leaves in one write. Without a connection they are dropped."""
        if self._socket is None:
            return
        self._ready.append(data)
        self._queued += len(data)
        if self._queued > CONGESTED_BYTES:
            self._was_congested = True

    def close(self) -> None:
        """End the stream and what is queued; no other is made. Idempotent."""
        connection, self._socket = self._socket, None
        if connection is not None:
            self._loop.attend(connection.fileno(), 0, self._on_ready)
            connection.close()
        self._ready.clear()
        self._unsent, self._queued, self._was_congested = memoryview(b""), 0, False

    def drop(self, why: str) -> None:
        """Give up this stream and connect anew."""
        if self._socket is None:
            return
        print(f"helmr supervisor: the stream to the host ended: {why}", file=sys.stderr, flush=True)
        self.close()
        self._on_lost()
        if self._path is None:
            return
        self._loop.call_later(self._retry, self.connect)
        self._retry = min(self._retry * 2, LAST_RETRY_SECONDS)

    def _before_asking(self) -> bool:
        connection = self._socket
        self._flush()
        return self._socket is not connection  # It was dropped, and the next attempt was scheduled.

    def _flush(self) -> None:
        if self._ready and not self._unsent:
            self._unsent = memoryview(self._ready[0] if len(self._ready) == 1 else b"".join(self._ready))
            self._ready.clear()
            self._write(blocked=False)

    def _writable(self) -> None:
        self._write(blocked=True)
        if not self._unsent:
            self._flush()

    def _write(self, *, blocked: bool) -> None:
        connection = self._socket
        if connection is None:
            return
        try:
            sent = connection.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.drop(str(error))
            return
        self._unsent = self._unsent[sent:]
        self._queued -= sent
        if self._unsent and not blocked:
            self._loop.attend(connection.fileno(), READ | WRITE, self._on_ready)
        elif blocked and not self._unsent:
            self._loop.attend(connection.fileno(), READ, self._on_ready)
        if self._was_congested and self._queued <= CONGESTED_BYTES // 2:
            self._was_congested = False
            self._on_room()

    def _on_ready(self, events: int) -> None:
        connection = self._socket
        if events & WRITE and self._unsent:
            self._writable()
        if events & READ and self._socket is connection:
            self._readable()

    def _readable(self) -> None:
        connection = self._socket
        if connection is None:
            return
        try:
            data = connection.recv(_READ)
        except BlockingIOError:
            return
        except OSError as error:
            self.drop(str(error))
            return
        if not data:
            self.drop("the host closed it")
            return
        try:
            frames = list(self._reader.feed(data))
        except FrameError as error:
            self.drop(str(error))
            return
        if frames:
            self._retry = FIRST_RETRY_SECONDS
            self._on_frames(frames)
