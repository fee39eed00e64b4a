"""One stream as its control plane has it: messages from the Computer, windows in both directions, its end. SPEC [C8], I4."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from helmr.protocol import frames, streams
from helmr.protocol.errors import HelmrError, PathNotFound, PathRefused, PortRefused, StreamBroken
from helmr.protocol.streams import WINDOW_BYTES, Message, StreamError, StreamKind

if TYPE_CHECKING:
    from helmr.control.service.guests import Seat

IN_FLIGHT_SECONDS: Final = 15.0
"""For how long after its last bytes a tunnel counts as in flight [C6]."""
ANSWERED_SECONDS: Final = 15 * 60.0
"""The same if those were the Computer's."""
WAITING_WORDS: Final = 64

_TALKING: Final = frozenset({"shell", "forward"})
"""Kinds whose clients keep to the windows themselves."""
_LAST: Final = frozenset({"done", "exit", "failed"})
_ERRORS: Final[Mapping[str, type[HelmrError]]] = {
    "path_not_found": PathNotFound,
    "path_refused": PathRefused,
    "port_refused": PortRefused,
}


class StreamRun:
    """`on_bytes` is told when bytes passed after a silence."""

    def __init__(self, id: str, computer_id: str, kind: StreamKind, on_bytes: Callable[[], None]) -> None:
        self.id = id
        self.computer_id = computer_id
        self.kind: StreamKind = kind
        self.channel = 0
        self.seat: Seat | None = None
        self.error: HelmrError | None = None
        """Why it is over, when it did not end by itself."""
        self.exited = asyncio.Event()
        """Its scope is gone, or the way to it."""
        self._on_bytes = on_bytes
        self._inbox: deque[Message] = deque()
        self._words = 0
        self._untaken = 0
        self._room = WINDOW_BYTES
        self._granted = 0
        """Credit of which the client was not told yet."""
        self._ended = False
        self._news = asyncio.Event()
        self._bytes_at = time.monotonic()
        self._answered = False

    # --- from the Computer --------------------------------------------------------------------------------------------------

    def hear(self, payload: bytes) -> None:
        """Take a payload of its channel. Raises `StreamError` for what no scope of ours says (I4)."""
        message = streams.read_payload(payload)
        if isinstance(message, bytes):
            self._untaken += len(message)
            if self._untaken > WINDOW_BYTES:
                raise StreamError("more was said than may wait")
            self._note(answered=True)
        elif message["t"] == "credit":
            granted = streams.whole(message, "bytes", WINDOW_BYTES)
            self._room = min(WINDOW_BYTES, self._room + granted)
            self._granted = min(WINDOW_BYTES, self._granted + granted)
            self._news.set()
            return
        elif message["t"] not in streams.UP or self._words >= WAITING_WORDS:
            raise StreamError(f"the word {message['t'][:40]!r} is not for a stream")
        else:
            self._words += 1
        self._inbox.append(message)
        self._news.set()

    def lost(self, error: HelmrError) -> None:
        """Nothing more comes. What had come is still received."""
        if not self._ended:
            self._ended = True
            self.error = error
        self.exited.set()
        self._news.set()

    def gone(self, said: Mapping[str, Any]) -> None:
        """Its scope is gone: right after its last word, or too early."""
        failure: Mapping[str, Any] = said.get("error") or {}
        self.lost(StreamBroken(failure.get("message") or said.get("message") or None))

    async def receive(self) -> Message | None:
        """The next message; None at the end, of which `error` says why when it is no word."""
        while not self._inbox:
            if self._granted and self.kind in _TALKING:
                granted, self._granted = self._granted, 0
                return {"t": "credit", "bytes": granted}
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._inbox.popleft()
        if not isinstance(message, bytes):
            self._words -= 1
            if message["t"] in _LAST:
                self._ended = True
        return message

    async def begin(self) -> Mapping[str, Any]:
        """The word with which it begins. Raises why it doesn't."""
        message = await self.receive()
        if message is not None and not isinstance(message, bytes):
            if message["t"] == "ready":
                return message
            if message["t"] == "failed":
                raise failure_of(message)
        raise self.error or StreamBroken("What serves the stream said no word that begins one.")

    # --- to the Computer ----------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many bytes of data may be sent now."""
        return self._room

    async def until_room(self) -> bool:
        """Wait until data may be sent: True; or until something was said, or it is over: False, `receive` tells."""
        while self._room <= 0 and not self._ended and not self._inbox:
            self._news.clear()
            await self._news.wait()
        return not self._ended and not self._inbox

    def send(self, data: bytes) -> None:
        """Send data, within `room`. Raises `StreamError` for more."""
        if len(data) > self._room:
            raise StreamError("more was sent than may wait")
        self._room -= len(data)
        self._note(answered=False)
        for start in range(0, len(data), streams.PIECE_BYTES):
            self._write(streams.data_payload(data[start : start + streams.PIECE_BYTES]))

    def say(self, kind: str, **members: Any) -> None:
        self._write(streams.word(kind, **members))

    def taken(self, size: int) -> None:
        """The client has taken so much data. Raises `StreamError` for more than it had."""
        if size > self._untaken:
            raise StreamError("more was taken than was sent")
        self._untaken -= size
        self.say("credit", bytes=size)

    @property
    def counts_seconds(self) -> float | None:
        """For how much longer it keeps its Computer awake; None for as long as it is there [C6]."""
        if self.kind != "forward":
            return None
        return (ANSWERED_SECONDS if self._answered else IN_FLIGHT_SECONDS) - (time.monotonic() - self._bytes_at)

    def _write(self, payload: bytes) -> None:
        if self.seat is not None and not self.exited.is_set():
            self.seat.write(frames.encode(self.channel, 0, payload))

    def _note(self, *, answered: bool) -> None:
        now = time.monotonic()
        silent = now - self._bytes_at > IN_FLIGHT_SECONDS / 2
        self._bytes_at, self._answered = now, answered
        if silent:
            self._on_bytes()


def failure_of(word: Mapping[str, Any]) -> HelmrError:
    """What a `failed` word means to a client."""
    return _ERRORS.get(str(word.get("code")), StreamBroken)(str(word.get("message") or "")[:2000] or None)
