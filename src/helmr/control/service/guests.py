"""What this control plane knows of Session processes whose Computer is attached here. Memory only: the database has all of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from helmr.control.domain.redaction import RedactedStream
from helmr.control.service.frames_up import Up
from helmr.control.service.stream_run import StreamRun
from helmr.control.service.vault import NOTHING, Handed
from helmr.protocol import frames
from helmr.protocol.link import Link, guest

_ACK_SECONDS: Final = 0.02
_ACK_FRAMES: Final = 16


class Guest:
    """One Session process: a channel of a Computer, which is its epoch."""

    __slots__ = (
        "accepted",
        "ack_due",
        "ack_handle",
        "answered",
        "asking",
        "ended",
        "hot",
        "idle",
        "last_turn",
        "logs",
        "lost",
        "number",
        "offence",
        "output_bytes",
        "queue",
        "received",
        "root_session_id",
        "seat",
        "sent_messages",
        "session_id",
        "settling",
        "started_at",
        "stopped",
        "stored",
        "stored_events",
        "task",
        "turn_id",
    )

    def __init__(self, seat: Seat, session_id: str, root_session_id: str, number: int, stored: int) -> None:
        self.seat = seat
        self.session_id = session_id
        self.root_session_id = root_session_id
        self.number = number
        self.received = stored
        """The highest op that arrived; lower ones are repeats."""
        self.stored = stored
        """The highest op that the database has, or that was refused for good; acknowledged with each frame downwards."""
        self.accepted = stored
        """The highest op that was acknowledged."""
        self.hot = 0
        """Hot items in the batcher."""
        self.idle = asyncio.Event()
        """Set while `hot` is 0: a slow operation waits for it, so that operations keep their order."""
        self.idle.set()
        self.settling = False
        """A settlement is in the batcher: what is said after it waits, so that it can't overtake it."""
        self.queue: deque[tuple[int, Up | Callable[[], Any]]] = deque()
        self.task: asyncio.Task[None] | None = None
        self.turn_id: str | None = None
        self.last_turn: str | None = None
        """The Turn that settled last: a read that began before must not start it again."""
        self.started_at: datetime | None = None
        self.offence: str | None = None
        """How it broke the protocol; told when its process has ended."""
        self.output_bytes = 0
        self.stopped: str | None = None
        """The Turn that was told to stop."""
        self.ended = False
        """It was told that no Turn comes any more."""
        self.logs: dict[str, Any] = {}
        """What it writes to its standard output and error, on its way to whoever shows that."""
        self.lost = False
        self.sent_messages: set[str] = set()
        self.answered: set[int] = set()
        """Questions, by the ops that asked them, whose ends it was told."""
        self.asking: set[int] = set()
        """Questions whose ends it still waits for: while there are any, the database is asked again and again (I6)."""
        self.stored_events: list[list[int]] = []
        """[op, sequence] of outputs somebody awaits now."""
        self.ack_handle: asyncio.TimerHandle | None = None
        self.ack_due = False
        """Whether `ack` is called in the loop's next pass."""

    def begin_turn(self, turn_id: str, started_at: datetime) -> None:
        self.turn_id = turn_id
        self.started_at = started_at
        self.output_bytes = 0
        self.stopped = None
        self.sent_messages.clear()
        self.answered.clear()
        self.asking.clear()

    def asks(self, op: int) -> None:
        """The question of this op is stored; its end will have to be told."""
        if op not in self.answered:
            self.asking.add(op)

    def tell_end(self, op: int, payload: bytes) -> None:
        """Tell the end of the question of this op; once on this stream."""
        self.asking.discard(op)
        if op not in self.answered:
            self.answered.add(op)
            self.send(payload)

    def send(self, payload: bytes) -> None:
        """Write a frame downwards; it acknowledges what is stored."""
        self._acknowledged()
        self.seat.write(frames.encode(self.number, self.stored, payload))

    def ack_soon(self) -> None:
        """`ack` once all is done that follows the same flush."""
        if not self.ack_due:
            self.ack_due = True
            self.seat.loop.call_soon(self.ack)

    def ack(self) -> None:
        """Acknowledge soon: with what is awaited now at once, else with the next frame, after 16 frames or 20 ms."""
        self.ack_due = False
        if self.stored_events:
            pairs, self.stored_events = self.stored_events, []
            body = ",".join(f"[{op},{sequence}]" for op, sequence in pairs)
            self.send(b'{"t":"stored","ops":[' + body.encode() + b"]}")
        elif self.stored - self.accepted >= _ACK_FRAMES:
            self.ack_now()
        elif self.ack_handle is None and self.stored > self.accepted:
            self.ack_handle = self.seat.loop.call_later(_ACK_SECONDS, self.ack_now)

    def ack_now(self) -> None:
        if self.stored > self.accepted and not self.lost:
            self._acknowledged()
            self.seat.write(frames.encode(self.number, self.stored))

    def _acknowledged(self) -> None:
        self.accepted = self.stored
        if self.ack_handle is not None:
            self.ack_handle.cancel()
            self.ack_handle = None

    def forget(self) -> None:
        """Its stream is gone: nothing is sent any more."""
        self.lost = True
        if self.ack_handle is not None:
            self.ack_handle.cancel()
            self.ack_handle = None


@dataclass(slots=True, eq=False)
class CommandRun:
    """A Command on a Computer that is attached here. Memory only."""

    command_id: str
    channel: int
    received: int
    """The highest op that arrived; lower ones are repeats."""
    stored: int
    there: bool = False
    """The supervisor has spoken of it."""
    told_stop: bool = False
    queue: deque[tuple[int, Any, bytes]] = field(default_factory=deque[tuple[int, Any, bytes]])
    queued_bytes: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something is queued, or its scope has ended."""
    redacted: dict[str, RedactedStream] = field(default_factory=dict[str, RedactedStream])
    """Its two streams, as they are stored."""
    draining: bool = False
    last: Callable[[], Awaitable[None]] | None = None
    """What is to be done once all that it said is stored."""


@dataclass(slots=True, eq=False)
class Seat:
    """A Computer on a link: where its frames go, and its Session processes by channel."""

    computer_id: str
    environment_id: str
    fence: int
    slot: int
    link: Link
    worker_id: str
    handed: Handed = NOTHING
    """The Secrets that it was started with [X1]."""
    attached: bool = False
    guests: dict[int, Guest] = field(default_factory=dict[int, Guest])
    commands: dict[int, CommandRun] = field(default_factory=dict[int, "CommandRun"])
    """Its Commands, by channel."""
    streams: dict[int, StreamRun] = field(default_factory=dict[int, "StreamRun"])
    """Streams of clients here, by channel."""
    starting: set[int] = field(default_factory=set[int])
    """Channels for which session.start was sent on this link."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """Known, since to ask for it is a system call in some versions of Python."""
    _out: list[bytes] = field(default_factory=list[bytes])

    def write(self, frame: bytes) -> None:
        """Queue a frame; what is written in one turn of the loop leaves as one message."""
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        body = b"".join(self._out)
        self._out.clear()
        self.link.send(guest(self.slot, body))
