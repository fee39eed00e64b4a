"""Guest frames: what a Session process and its supervisor say to the host, and the host to them.

One stream joins a Computer's supervisor and its host. It carries frames

    length u32 | channel u32 | op u64 | payload (`length` bytes)

big-endian. Channel 0 is the supervisor itself; each Session process has a channel number of its own, given by the control plane,
unique within its Computer and never used again: it is the *process epoch*. DESIGN I4, I5.

`op` upwards (guest to host) numbers what must be stored, from 1 in each epoch, without gaps; 0 marks what may be lost. Downwards it
is the highest op stored so far (0: nothing to say), and a frame without payload says only that. The supervisor keeps each numbered
frame until it is acknowledged and sends it again after every attach: a frame is stored once, since the control plane drops ops that it has.

A numbered frame whose payload has `"r": 1` has someone waiting for it: the host acknowledges it at once, instead of with the next frame or
after a moment. For a turn.output the acknowledgement is `stored`, which also tells the event's sequence.

Payloads are JSON objects whose member "t" names their kind. See `UP`, `DOWN` and `SUPERVISOR_*` for the kinds and their members.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from helmr.protocol.limits import FRAME_BYTES

PROTOCOL: Final = 1
"""Of guests. It is raised by at most one from a minor version of Helmr to the next."""
OLDER: Final = 2
"""How many protocols before its own a host speaks with guests: those of the last two minor versions [D5]."""
"""Version of the frames between host and guest [D5]."""

HEADER: Final = struct.Struct(">IIQ")
HEADER_BYTES: Final = HEADER.size
SUPERVISOR: Final = 0
"""The supervisor's channel."""

UP: Final = {
    "init.done": "`init` succeeded; the process takes Turns",
    "init.failed": "`error` {code, message}; the process ends after it",
    "turn.output": "`turn`, `content`: one normalized Content list, one event",
    "turn.stopping": "`turn`, `cause` (handler_failed, message_handler_failed), `error`: a stop mark made by the guest [S11]",
    "turn.settled": "`turn`, `status`, `error`?, `result`?, `response`?: the handler drained. status is completed (`result` is there, "
    "if only null), failed, or stopped (a mark was there first)",
    "turn.undrained": "`turn`, `detail`: a callback raised or the cleanup time ran out; the host ends the process tree [S13]",
    "messages.open": "`turn`: the Turn's message handler is registered [S7]",
    "messages.closed": "`turn`: the handler returned; no message is taken any more",
    "message.started": "`id`",
    "message.delivered": "`id`",
    "message.rejected": "`id`, `reason`, `delivery`, `detail`?",
    "question.ask": "`turn`, `question`; the question is known by the op of this frame afterwards",
    "question.withdraw": "`ask` (the op of question.ask): its signal aborted",
    "output.locate": "op 0. `turn`, `outputs`: [[op, n]]: these n-th outputs (from 1) of the Turn are stored, but a lost connection took "
    "the `stored` that told their sequence; answered by `stored`",
    "command.output": "`stream` (stdout, stderr), `data` (base64), `lost`?: so many bytes of the stream are missing before them [C8]",
    "command.timed_out": "the Command's time is over, and it is being ended",
}
"""Numbered frames from a Session process, or from the supervisor for a Command. All are local decisions of the guest that the host records;
the host checks them again, and ends a process whose frames break the protocol."""

DOWN: Final = {
    "stored": "`ops`: [[op, sequence]]: outputs that asked with `r`, each stored as the event with that sequence; the header's op "
    "acknowledges them; may come again",
    "session.open": "first frame of a channel: `session` {id, key?, parent?}, `agent`, `computer`, `deployment`, "
    "`recovery` {kind, reason?}, `bundle` (a folder, on sys.path), `file` and `attribute` (the definition), `secrets`?",
    "turn.start": "`turn` {id, sequence, created_at, source}, `input`; the same Turn may come again, and starts once [I5]",
    "turn.stop": "`turn`, `reason` (an AbortReason), `seconds`: what is left of the cleanup time",
    "message": "`id`, `turn`, `content`, `source`; may come again",
    "question.answer": "`ask`, `answer`, `responded_by`; may come again",
    "question.cancelled": "`ask`, `reason`; may come again",
    "session.end": "`reason`, `seconds`: no Turn comes any more; drain, then exit 0",
    "command.stop": "`seconds`: SIGTERM to the Command's process group, SIGKILL to its whole scope that much later",
}
"""Frames to a Session process. All are idempotent."""

SUPERVISOR_UP: Final = {
    "hello": '`protocol`, `python`, `channels`: {number: {"pid", "alive", "last_op", "acked"}}; the first frame of every stream',
    "scope.started": "`channel`, `pid` (inside)",
    "scope.exited": "`channel`, `code`?, `signal`?; repeated after an attach until scope.forget",
    "scope.failed": "`channel`, `message`: it could not be started",
    "log": "`channel`, `stream` (stdout, stderr), `text`: lossy",
    "pong": '`n`, `held`?: {number: {"requests"?, "kept"?}}: what keeps the Computer awake, by Session process [C6]',
}
SUPERVISOR_DOWN: Final = {
    "attach": "`acked`: {number: op}; trims, then sends every kept frame again",
    "scope.start": "`channel`, `zygote` (a name), `preload`: [module], `path`: [folder], `env`: {name: value}, `cwd`, `user`?, `open`: "
    "the session.open payload; for a Command instead `argv`, `timeout_ms` and, by their sizes, the `stdin` bytes that came before; for a "
    "stream instead `stream`: its opening word (`protocol/streams.py`)",
    "scope.stdin": "`channel`, `at` (offset), `data` (base64): a piece of what a Command that will be started reads",
    "scope.kill": "`channel`: SIGKILL to all that descends from it",
    "scope.forget": "`channel`: its end is recorded; drop what is kept of it",
    "ping": "`n`",
}


def spoken(protocol: object, own: int = PROTOCOL) -> bool:
    """Whether a host of protocol `own` speaks with a guest of that one."""
    return type(protocol) is int and max(1, own - OLDER) <= protocol <= own


class Frame(NamedTuple):
    channel: int
    op: int
    payload: bytes


def encode(channel: int, op: int, payload: bytes = b"") -> bytes:
    """One frame's bytes. Raises `ValueError` for a payload over 1 MiB."""
    if len(payload) > FRAME_BYTES:
        raise ValueError(f"A frame carries at most {FRAME_BYTES} bytes.")
    return HEADER.pack(len(payload), channel, op) + payload


class FrameError(Exception):
    """The bytes are no frames; the stream must be dropped."""


class FrameReader:
    """Cuts a byte stream into frames, whatever the sizes in which it arrives."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield each frame that `data` completes. Raises `FrameError` for a length over the limit."""
        buffer = self._buffer
        buffer += data
        start, end = 0, len(buffer)
        try:
            while end - start >= HEADER_BYTES:
                length, channel, op = HEADER.unpack_from(buffer, start)
                if length > FRAME_BYTES:
                    raise FrameError(f"A frame claims {length} bytes; at most {FRAME_BYTES} are allowed.")
                body = start + HEADER_BYTES
                if end - body < length:
                    return
                start = body + length
                yield Frame(channel, op, bytes(buffer[body:start]))
        finally:
            del buffer[:start]

    @property
    def pending(self) -> int:
        """Bytes held that make no whole frame yet."""
        return len(self._buffer)
