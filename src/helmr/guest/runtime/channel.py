"""A Session process's end of its channel: numbered frames out, acknowledgements and frames in. SPEC [E5], DESIGN 7.

What is posted in one pass of the event loop leaves in one write, or sooner when somebody waits for it. Frames leave in the
order of their ops; outputs wait while `OUTPUT_WINDOW` of them are unacknowledged, and what is posted behind them waits too. The
supervisor keeps each frame until it is stored, so nothing here is kept for sending again.

Between a process and its supervisor the header's channel carries flags instead: `WANT` asks to be told when the op is acknowledged.
A frame without payload and with `WANT` asks that alone; one with `HELD` is for the supervisor itself.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from helmr.guest.polling import READ, WRITE, running_guest_loop
from helmr.protocol.frames import HEADER, HEADER_BYTES, FrameError
from helmr.protocol.limits import FRAME_BYTES, OUTPUT_WINDOW

WANT: Final = 1
"""Flag of a frame to the supervisor: tell the acknowledgement of this op at once."""

HELD: Final = 2
"""Flag of a frame for the supervisor itself: `{"requests", "kept"}`, what keeps the Computer awake [C6]. It goes no further."""

ASK_EVERY: Final = OUTPUT_WINDOW // 2
"""Every so many outputs ask for an acknowledgement, so that a full window never waits for a delayed one."""

_READ: Final = 32 * 1024
_ASKING: Final = b',"r":1}'
_PLAIN: Final = b"}"

_NOWHERE: Final[Mapping[int, int]] = {}

_decoded: Final = json.JSONDecoder().raw_decode


class Posted:
    """One numbered frame on its way: `stored` is called once it is acknowledged.

    An output that wants its receipt (`located`) is told its event's sequence; all else is told None.
    """

    __slots__ = ("ask", "body", "located", "op", "output", "stored")

    def __init__(
        self, op: int, body: bytes, *, ask: bool, output: bool, located: bool, stored: Callable[[int | None], None] | None
    ) -> None:
        self.op, self.body, self.ask, self.output, self.located, self.stored = op, body, ask, output, located, stored


class Channel:
    """Owned by the Session process; used in its event loop only.

    `on_frame(kind, frame)` gets each frame from the host in order, `on_closed` the end of the channel: the supervisor is gone.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        on_frame: Callable[[str, dict[str, Any]], None],
        on_unlocated: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._socket = connection
        self._loop = running_guest_loop()
        self._on_frame, self._on_unlocated, self._on_closed = on_frame, on_unlocated, on_closed
        self._partial = b""
        self._next_op = 1
        self._acknowledged = 0
        self._under_way: deque[Posted] = deque()
        self._waiting: deque[Posted] = deque()
        self._outputs = 0
        self._unasked = 0
        self.unlocated: dict[int, Posted] = {}
        """Outputs that are stored, and whose sequence a lost connection took."""
        self._ready: list[bytes] = []
        self._unsent = b""
        self._attended = 0
        self._idle: asyncio.Event | None = None

    def start(self) -> None:
        """Begin to read. Frames that have arrived already are delivered in the loop's next pass."""
        self._socket.setblocking(False)
        self._attend(READ)
        self._loop.before_asking(self._before_asking)

    def close(self) -> None:
        """Stop reading and writing. Idempotent."""
        if self._socket.fileno() >= 0:
            self._attend(0)
            self._socket.close()

    def post(
        self,
        body: bytes,
        *,
        ask: bool = False,
        output: bool = False,
        located: bool = False,
        stored: Callable[[int | None], None] | None = None,
    ) -> Posted:
        """Number a frame and send it in this pass of the loop, or when the window lets it.

        `body` is a JSON object without its closing brace. `ask` has the host acknowledge it at once.
        """
        posted = Posted(self._next_op, body, ask=ask, output=output, located=located, stored=stored)
        self._next_op += 1
        if self._waiting or (output and self._outputs >= OUTPUT_WINDOW):
            self._waiting.append(posted)
        else:
            self._send(posted)
        return posted

    def say(self, payload: bytes) -> None:
        """Send a frame that may be lost."""
        self._emit(HEADER.pack(len(payload), 0, 0) + payload)

    def hold(self, requests: int, kept: int) -> None:
        """Tell the supervisor at once what is in flight here: whoever began it may block the loop next."""
        payload = b'{"requests":%d,"kept":%d}' % (requests, kept)
        self._emit(HEADER.pack(len(payload), HELD, 0) + payload)
        self.flush()

    def want(self, op: int) -> None:
        """Have the supervisor tell the acknowledgement of `op` at once; it left without asking."""
        if op > self._acknowledged:
            self._emit(HEADER.pack(0, WANT, op))

    def flush(self) -> None:
        """Write what was posted now, not at the end of this pass."""
        if self._ready and not self._unsent:
            data = self._ready[0] if len(self._ready) == 1 else b"".join(self._ready)
            self._ready.clear()
            self._write(data)

    async def flushed(self) -> None:
        """Return when all that was posted has left this process. Raises nothing; a closed channel counts as flushed."""
        while self._waiting or self._ready or self._unsent:
            self._idle = asyncio.Event()
            await self._idle.wait()

    # --- out --------------------------------------------------------------------------------------------------------------

    def _send(self, posted: Posted) -> None:
        ask = posted.ask
        if posted.output:
            self._outputs += 1
            self._unasked = 0 if ask else self._unasked + 1
            if self._unasked >= ASK_EVERY:
                ask, self._unasked = True, 0
        tail = _ASKING if ask else _PLAIN
        self._under_way.append(posted)
        self._emit(HEADER.pack(len(posted.body) + len(tail), WANT if ask else 0, posted.op) + posted.body + tail)
        posted.body = b""

    def _emit(self, frame: bytes) -> None:
        self._ready.append(frame)

    def _before_asking(self) -> bool:
        if not self._ready:
            return False
        awaited = self._idle
        self.flush()
        return awaited is not self._idle or not self._attended  # Who waits for `flushed`, or for the end, has been woken.

    def _write(self, data: bytes) -> None:
        if self._socket.fileno() < 0:
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._ended()
            return
        self._unsent = data[sent:]
        self._attend(READ | WRITE if self._unsent else READ)
        if not (self._waiting or self._ready or self._unsent):
            self._tell_idle()

    def _writable(self) -> None:
        data = self._unsent + b"".join(self._ready)
        self._ready.clear()
        self._write(data)

    def _tell_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    def _attend(self, events: int) -> None:
        if events != self._attended:
            self._attended = events
            self._loop.attend(self._socket.fileno(), events, self._on_ready)

    # --- in ---------------------------------------------------------------------------------------------------------------

    def _on_ready(self, events: int) -> None:
        if events & WRITE and self._unsent:
            self._writable()
        if events & READ and self._attended:
            self._readable()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._ended()
            return
        for op, payload in self._cut(self._partial + data if self._partial else data):
            if not payload:
                self._acknowledge(op, _NOWHERE)
                continue
            frame, _ = _decoded(payload.decode())
            kind = frame["t"]
            if kind == "stored":
                self._acknowledge(op, dict(frame["ops"]))
            else:
                self._acknowledge(op, _NOWHERE)
                self._on_frame(kind, frame)

    def _cut(self, data: bytes) -> list[tuple[int, bytes]]:
        """The whole frames in `data`, as ops and payloads; what is left over waits for more."""
        frames: list[tuple[int, bytes]] = []
        position, end = 0, len(data)
        while end - position >= HEADER_BYTES:
            length, _, op = HEADER.unpack_from(data, position)
            if length > FRAME_BYTES:
                raise FrameError(f"A frame claims {length} bytes; at most {FRAME_BYTES} are allowed.")
            body = position + HEADER_BYTES
            if end - body < length:
                break
            position = body + length
            frames.append((op, data[body:position]))
        self._partial = data[position:]
        return frames

    def _ended(self) -> None:
        self.close()
        self._waiting.clear()
        self._ready.clear()
        self._unsent = b""
        self._tell_idle()
        self._on_closed()

    def _acknowledge(self, op: int, sequences: Mapping[int, int]) -> None:
        for number, sequence in sequences.items():
            missing = self.unlocated.pop(number, None)
            if missing is not None and missing.stored is not None:
                missing.stored(sequence)
        if op > self._acknowledged:
            self._acknowledged = op
        under_way = self._under_way
        while under_way and under_way[0].op <= op:
            posted = under_way.popleft()
            if posted.output:
                self._outputs -= 1
            stored = posted.stored
            if stored is None:
                continue
            sequence = sequences.get(posted.op) if posted.located else None
            if posted.located and sequence is None:
                self.unlocated[posted.op] = posted
            else:
                posted.stored = None  # It may hold `posted` in turn; so it needs no collector.
                stored(sequence)
        while self._waiting and not (self._waiting[0].output and self._outputs >= OUTPUT_WINDOW):
            self._send(self._waiting.popleft())
        if self.unlocated:
            self._on_unlocated()
