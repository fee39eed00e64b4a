"""The Computer's end of a stream, in the process that serves it: messages over the channel of its scope, within their windows."""

from __future__ import annotations

import select
import socket
from collections import deque
from typing import Any, Final

from helmr.protocol.frames import FrameReader, encode
from helmr.protocol.streams import PIECE_BYTES, WINDOW_BYTES, Message, data_payload, read_payload, word

_READ: Final = 64 * 1024
_GRANT_BYTES: Final = WINDOW_BYTES // 4


class HungUp(Exception):
    """The other end is gone, or says that the client is."""


class StreamChannel:
    """Never blocks but in `wait`, `put` and `take`. After `HungUp` nothing is to be said any more."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._reader = FrameReader()
        self._out = bytearray()
        self._inbox: deque[Message] = deque()
        self._taken = 0
        self.credit = WINDOW_BYTES
        """Bytes of data that may be said now."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something said waits to be written: call `write` when the descriptor is writable."""
        return bool(self._out)

    @property
    def waiting(self) -> bool:
        """Whether `read` has something that was heard before."""
        return bool(self._inbox)

    def say(self, kind: str, **members: Any) -> None:
        """Say a word."""
        self._send(word(kind, **members))

    def data(self, data: bytes) -> None:
        """Say data: at most `credit` and `PIECE_BYTES`."""
        self.credit -= len(data)
        self._send(data_payload(data))

    def granted(self, size: int) -> None:
        """So much of the other end's data is taken; it is told now and then."""
        self._taken += size
        if self._taken >= _GRANT_BYTES:
            self.say("credit", bytes=self._taken)
            self._taken = 0

    def write(self) -> None:
        """Write what waits, as far as it goes. Raises `HungUp`."""
        try:
            while self._out:
                sent = self._socket.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            return
        except OSError as error:
            raise HungUp(str(error)) from None

    def read(self) -> list[Message]:
        """What has come, but credit, which is noted. Raises `HungUp`."""
        found = list(self._inbox)
        self._inbox.clear()
        while True:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return found
            except OSError as error:
                raise HungUp(str(error)) from None
            if not data:
                raise HungUp("The channel was closed.")
            for frame in self._reader.feed(data):
                if not frame.payload:
                    continue
                message = read_payload(frame.payload)
                if isinstance(message, bytes):
                    found.append(message)
                elif message["t"] == "credit":
                    self.credit += int(message["bytes"])
                elif message["t"] == "hangup":
                    raise HungUp("The client is gone.")
                else:
                    found.append(message)

    # --- blocking ---------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until something came or all that waited is written. Raises `HungUp`."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
        for _, events in poll.poll():
            if events & select.POLLOUT:
                self.write()
            if events & ~select.POLLOUT:
                self._inbox.extend(self.read())

    def put(self, data: bytes) -> None:
        """Say data of any length, piece by piece, as the other end takes it."""
        view = memoryview(data)
        while view:
            while not self.credit or self._out:
                self.wait()
            size = min(len(view), PIECE_BYTES, self.credit)
            self.data(bytes(view[:size]))
            view = view[size:]

    def take(self) -> Message:
        """The next message. Data counts as taken."""
        while not self._inbox:
            self._inbox.extend(self.read())
            if not self._inbox:
                self.wait()
        message = self._inbox.popleft()
        if isinstance(message, bytes):
            self.granted(len(message))
        return message

    def finish(self) -> None:
        """Wait until all that was said is written."""
        while self._out:
            self.wait()

    def _send(self, payload: bytes) -> None:
        self._out += encode(0, 0, payload)
        self.write()
