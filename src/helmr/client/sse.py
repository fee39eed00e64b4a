"""Server-sent events, from bytes that may be cut anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from helmr.protocol.errors import UnreadableAnswer
from helmr.protocol.limits import MIB

LONGEST = 8 * MIB
"""Bytes of one message, far above what an event can hold: another program's endless line ends here."""


@dataclass(frozen=True, slots=True)
class Message:
    """One dispatched message. `id` is None unless this very message carried one: heartbeats and ends have none [E4]."""

    event: str
    data: str
    id: str | None


class SseParser:
    """Feed bytes as they come; each call gives the messages that they completed. What an end of stream cuts off is never dispatched."""

    def __init__(self) -> None:
        self.retry: float | None = None
        """Seconds that the server asks to wait before a reconnection."""
        self._tail = b""
        self._after_return = False
        self._at_start = True
        self._event = ""
        self._data: list[str] = []
        self._id: str | None = None
        self._size = 0

    def feed(self, chunk: bytes) -> list[Message]:
        """Raises `UnreadableAnswer` for text that is no UTF-8 and for a message without end."""
        *lines, self._tail = (self._tail + self._normalized(chunk)).split(b"\n")
        found: list[Message] = []
        for line in lines:
            self._size += len(line)
            message = self._line(line)
            if message is not None:
                found.append(message)
        if self._size + len(self._tail) > LONGEST:
            raise UnreadableAnswer(f"The stream sent a message of more than {LONGEST} bytes.")
        return found

    def _normalized(self, chunk: bytes) -> bytes:
        """With line feeds alone. A return at the end of one chunk may be half a line end, of which the next one holds the rest."""
        if self._after_return and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_return = False
        if chunk:
            self._after_return = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk

    def _line(self, raw: bytes) -> Message | None:
        if self._at_start:
            self._at_start = False
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if not raw:
            return self._dispatch()
        if raw.startswith(b":"):
            return None
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise UnreadableAnswer("The stream is no UTF-8.") from None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdecimal():
                self.retry = int(value) / 1000
            case _:
                pass
        return None

    def _dispatch(self) -> Message | None:
        message = None
        if self._data or self._event:
            message = Message(self._event or "message", "\n".join(self._data), self._id)
        self._event, self._data, self._id, self._size = "", [], None, 0
        return message
