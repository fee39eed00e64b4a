"""One scope in the supervisor: its channel's bytes, what is kept of them, and its end. SPEC [C3], [E5].

Upwards every numbered frame is kept until the host has stored it. More than `KEPT_BYTES` unacknowledged, or a congested stream, and
nothing more is read from the channel: the Session process waits, and nothing is lost. Payloads are not looked into.
"""

from __future__ import annotations

import json
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from helmr.guest.logs import LogPipe
from helmr.guest.polling import READ, WRITE, running_guest_loop
from helmr.guest.runtime.channel import HELD, WANT
from helmr.protocol.frames import HEADER, HEADER_BYTES
from helmr.protocol.limits import FRAME_BYTES, MIB

KEPT_BYTES: Final = 4 * MIB
DOWN_BYTES: Final = 32 * MIB
"""More than this unread by a Session process, and its channel is given up: the process is killed."""

_READ: Final = 64 * 1024
_HELD_BYTES: Final = 100
_HELD_MOST: Final = 1_000_000


class Upward(Protocol):
    """What a scope needs of the stream to the host."""

    @property
    def live(self) -> bool:
        """Whether the host has attached."""
        ...

    @property
    def congested(self) -> bool: ...
    def send(self, data: bytes) -> None: ...


class Scope:
    """`on_log(stream, text)` takes output, `on_broken(why)` a channel that can't go on, `on_finished` comes once its end is complete:
    the processes are gone and everything they said has been read."""

    def __init__(
        self,
        channel: int,
        connection: socket.socket,
        logs: dict[str, int],
        up: Upward,
        *,
        on_log: Callable[[str, str], bool],
        on_broken: Callable[[str], None],
        on_finished: Callable[[], None],
    ) -> None:
        self.channel = channel
        self.pid: int | None = None
        self.keeper: int | None = None
        self.doomed = False
        """Whether it is to be killed as soon as its processes are known."""
        self.exit: dict[str, Any] | None = None
        """How the Session process ended, once all of the scope's processes are gone."""
        self.failure: str | None = None
        """Why it could not be started."""
        self.sweeping = False
        """Whether what escaped its keeper is being ended."""
        self.finished = False
        self.held: dict[str, int] = {}
        """What keeps the Computer awake [C6]: `requests` and `kept`, as far as there are any."""
        self._socket = connection
        self._up, self._on_broken, self._on_finished = up, on_broken, on_finished
        self._loop = running_guest_loop()
        self._logs = [LogPipe(descriptor, self._logger(on_log, stream)) for stream, descriptor in logs.items()]
        self._partial = b""
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._last_op = 0
        self._acknowledged = self._told = self._wanted = 0
        self._down: list[bytes] = []
        self._unsent = b""
        self._reading = False
        self._attended = 0
        self._open = True
        connection.setblocking(False)
        self.resume()

    @property
    def acknowledged(self) -> int:
        """Up to which operation the host has stored what the process said."""
        return self._acknowledged

    @property
    def last_op(self) -> int:
        return self._last_op

    # --- up ---------------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Read from the channel if nothing stands against it."""
        wanted = self._open and self._kept_bytes < KEPT_BYTES and not self._up.congested
        if wanted and not self._reading:
            self._reading = True
            self._attend()
        elif not wanted and self._reading:
            self._reading = False
            self._attend()

    def kept(self) -> bytes:
        """Every kept frame, in order."""
        return b"".join(frame for _, frame in self._kept)

    def _attend(self) -> None:
        """Hear of what this waits for: bytes to read, room to write."""
        events = (READ if self._reading else 0) | (WRITE if self._unsent else 0)
        if events != self._attended:
            self._attended = events
            self._loop.attend(self._socket.fileno(), events, self._on_ready)

    def _on_ready(self, events: int) -> None:
        if events & WRITE and self._unsent:
            self._write(self._unsent)
        if events & READ and self._reading:
            self._readable()

    def _readable(self) -> None:
        if self._read():
            self.resume()
        self._finish()

    def _read(self) -> bool:
        """Whether there may be more to read."""
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close()
            return False
        self._take(self._partial + data if self._partial else data)
        return True

    def _take(self, data: bytes) -> None:
        frames: list[bytes] = []
        position, end = 0, len(data)
        while end - position >= HEADER_BYTES:
            length, flags, op = HEADER.unpack_from(data, position)
            body = position + HEADER_BYTES
            if length > FRAME_BYTES or (length and op and op <= self._last_op):
                self._close()
                self._on_broken("The Session process broke the framing of its channel.")
                return
            if body + length > end:
                break
            position = body + length
            if flags & WANT and op > self._wanted:
                self._wanted = op
            if flags & HELD:
                self._hold(data[body:position])
            elif length:
                frame = HEADER.pack(length, self.channel, op) + data[body:position]
                frames.append(frame)
                if op:
                    self._last_op = op
                    self._kept.append((op, frame))
                    self._kept_bytes += len(frame)
        self._partial = data[position:]
        if frames and self._up.live:
            self._up.send(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._tell_acknowledged():
            self.flush()

    def _hold(self, said: bytes) -> None:
        """What keeps the Computer awake by the process's own word: it can say what it likes, at this length."""
        try:
            told = json.loads(said[:_HELD_BYTES])
            self.held = {name: min(_HELD_MOST, int(told[name])) for name in ("requests", "kept") if int(told[name]) > 0}
        except (ValueError, TypeError, KeyError, RecursionError):
            self.held = {}

    # --- down -------------------------------------------------------------------------------------------------------------

    def acknowledge(self, op: int) -> None:
        """Drop what the host has stored."""
        if op <= self._acknowledged:
            return
        self._acknowledged = op
        kept = self._kept
        while kept and kept[0][0] <= op:
            self._kept_bytes -= len(kept.popleft()[1])
        if not self._reading:
            self.resume()
            self._finish()

    def begin(self, launch: bytes, opening: bytes) -> None:
        """Write the first bytes of the channel: the launch frame, then `session.open`."""
        self._down.append(launch)
        self._down.append(HEADER.pack(len(opening), 0, 0) + opening)
        self.flush()

    def forward(self, op: int, payload: bytes) -> None:
        """Queue a frame of the host for the Session process, or the news that it waits for; see `flush`."""
        self.acknowledge(op)
        if payload:
            self._told = self._acknowledged
            self._down.append(HEADER.pack(len(payload), 0, self._acknowledged) + payload)
        else:
            self._tell_acknowledged()

    def remind(self) -> None:
        """Tell the Session process what is stored, asked or not: a lost stream may have taken what it waits for."""
        self._down.append(HEADER.pack(0, 0, self._acknowledged))
        self.flush()

    def flush(self) -> None:
        """Write what is queued for the Session process."""
        if not self._down or not self._open:
            self._down.clear()
            return
        was_blocked = bool(self._unsent)
        data = self._unsent + b"".join(self._down)
        self._down.clear()
        if was_blocked:
            self._unsent = data
            if len(data) > DOWN_BYTES:
                self._on_broken("The Session process does not read its channel.")
            return
        self._write(data)

    def _tell_acknowledged(self) -> bool:
        if self._wanted > self._told and self._acknowledged > self._told:
            self._told = self._acknowledged
            self._down.append(HEADER.pack(0, 0, self._acknowledged))
            return True
        return False

    def _write(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The process is gone; what it still said is read until the end of its channel.
            sent = len(data)
        self._unsent = data[sent:]
        self._attend()

    # --- end --------------------------------------------------------------------------------------------------------------

    def ended(self, how: dict[str, Any]) -> None:
        """No process of the scope is left. What they said is read to its end, then `on_finished` is called."""
        if self.exit is None:
            self.exit = how
            self.held = {}
            for log in self._logs:
                log.finish()
            self._finish()

    def forget(self) -> None:
        """Close what is open of it."""
        for log in self._logs:
            log.finish()
        self._close()
        self._kept.clear()

    def _finish(self) -> None:
        if self.exit is None or self.finished:
            return
        while self._open and self._kept_bytes < KEPT_BYTES:
            if not self._read():
                self._close()  # Nothing more can come: who could write is gone.
        if not self._open:
            self.finished = True
            self._on_finished()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._reading, self._unsent = False, b""
            self._attend()
            self._socket.close()
            if self._partial:
                print(f"helmr supervisor: channel {self.channel} ended within a frame", file=sys.stderr, flush=True)

    def _logger(self, on_log: Callable[[str, str], bool], stream: str) -> Callable[[str], bool]:
        return lambda text: on_log(stream, text)


def in_flight(scopes: Iterable[tuple[int, object]]) -> dict[str, dict[str, dict[str, int]]]:
    """The member `held` of a pong: what Session processes say keeps the Computer awake [C6]. Of other scopes the host knows by itself."""
    held = {str(number): scope.held for number, scope in scopes if isinstance(scope, Scope) and scope.held}
    return {"held": held} if held else {}
