"""The worker link: one ordered stream of messages between a worker and a control plane.

A message is `slot u32 (big-endian) | body`. Slot 0 is control: the body is a JSON object whose "t" names its kind. Any other slot is a
Computer attached on this link, and the body is whole guest frames, as in `frames`. Over the network those that wait together travel in
one WebSocket binary message (`pack`), since each one costs a system call and a wake-up; in `helmr dev` a message is a call. A lost link
loses nothing: the worker says hello again and each Computer is attached anew.
DESIGN I4, I6, I8.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from helmr.protocol import jsontext

PROTOCOL: Final = 1
SLOT: Final = struct.Struct(">I")
CONTROL: Final = 0
PACKED_BYTES: Final = 256 * 1024
"""How much of what waits is packed into one network message."""

FROM_WORKER: Final = {
    "hello": "`protocol`, `worker` {id, name, driver, base, cpu, memory, version, draining}, `history`? {current, superseded: "
    "[incarnation], mark, since: [[turn, computer, channel]]}: the incarnation that its host follows, those that it left, the last mark "
    "that it heard and the Turns started since; `computers`: [{computer, fence, state, rung?}], where a fence is [incarnation, number]; "
    "first message of a link",
    "history.started": "`turns`: [[turn, computer, channel]]: what this host has started in whatever history, in batches [I11]",
    "turn.repeated": "`turn`, `computer`, `channel`: it was to be started there, and was started elsewhere before: the database has "
    "forgotten that. It is not started again (I5)",
    "history.entered": "the host follows the welcome's incarnation, has told all that it started, and waits for what it gets to do",
    "renew": "each 10 s; answered by `renewed`, in order. `draining`?: true when it takes nothing new (error code worker_draining); "
    "`storage`? {total, free, pressed}: its fullest disk in bytes, and whether that is too full [C7]; "
    "`mark`?: the last one that it heard; a database that doesn't have it is of another history; `since`? as in hello, when asked "
    "for by renew",
    "credential.offer": "`hash`: SHA-256 in hex of the credential that it will use next; answered by credential.stored. Of a worker with a "
    "credential of its own only",
    "leave": "the worker has drained, or waited for as long as it may, and goes: its lease is over if nothing of it runs. Answered by left",
    "computer.state": "`computer`, `fence`, `state` (running, failed, gone, asleep, awake), `error`? {code, message}, with gone a `reason` "
    "(exited, stopped, destroyed, not_woken), with asleep and awake `rung` and `seconds`, with asleep what was `kept`, a `reason`? why by "
    "no stronger rung, `image_bytes`?, `paged_out`?, or the error for which it could not sleep: after "
    "a computer.start, sleep, wake, stop or destroy, when an attach failed, or when it changes by itself",
    "computer.silent": "`computer`, `fence`, `since`?: its supervisor has not answered since then; without `since` it answers again",
    "computer.attached": "`computer`, `slot`, `channels`: {number: {alive, acked?}}; after computer.attach, before any frame of that slot. "
    "Again, on the same slot, when the supervisor's stream was lost and joined anew: what was sent down meanwhile may be lost",
    "computer.saved": "`computer`, `fence`, `save`, with `manifest` and `packs` (names of all that it needs), `files`, `bytes`, "
    "`changed_files`, `new_bytes`, `seconds`, `generation`; or with `error` {code, message}: after a computer.save, once all is stored; "
    "again when it is told again, until save.forget",
    "session.started": "`computer`, `channel`, `pid`",
    "session.exited": "`computer`, `channel`, `code`?, `signal`?, `cause` (exited, killed, out_of_memory, failed), `message`?, "
    "`error`? {code, message} with failed, `limit`?, `peak`?, `ended`, `seconds`: its processes are gone; repeated after an attach until "
    "session.forget",
    "session.log": "`computer`, `channel`, `stream`, `text`: lossy",
    "image.log": "`request`, `text`",
    "image.built": "`request`, `layers`: [key], `error`? {code, message}",
    "image.resolved": "`request`, `digests`: {reference: digest}, `error`? {code, message}",
}
TO_WORKER: Final = {
    "welcome": "`worker`, `lease_seconds`, `renew_seconds`, `control_plane`, `incarnation`; answers hello. In a link a fence is a number: "
    "the incarnation goes without saying. A host that follows another one freezes what runs, follows this one, and answers "
    "history.started and history.entered before it gets anything to do",
    "refused": "`message`: instead of the welcome; the link ends",
    "renewed": "`lease_seconds`, `computers`: [computer] that are leased: hostd's watchdog freezes others at the lease's end; `mark`: to "
    "be told with the next renewal and the next hello; `waits`?, to one that drains: {turns, processes, commands, streams, computers, "
    "busy, saves: how many}, what is to end before it may go; empty when all sleeps and is saved",
    "credential.rotate": "it is to make itself a new credential now",
    "credential.stored": "`hash`: the new one is taken from now on, and the old one until the new one is first used",
    "left": "answers leave: the worker may go",
    "renew": "a renewal is wanted now, with what was started since the last mark: the database was away",
    "computer.start": "`computer`, `fence`, `environment`, `template` (a TemplateManifest): make or re-use it, and start it. `restore`? "
    "{save, manifest, packs, keys}: make its files of that save first, whatever lies there of it [C5]. `secret_files`? [{path, value, "
    "shared}]: shown inside, never on a disk [X1]",
    "computer.save": "`computer`, `fence`, `save`, `previous` (name of the manifest of the save before, or null), `keys` {data, names} "
    "(base64): save its files; told again on each link",
    "save.forget": "`computer`, `save`: what became of it is stored",
    "computer.attach": "`computer`, `fence`, `slot`, `acked`: {channel: op}",
    "computer.protect": "`computer`, `fence`, `protected_secrets`: [{name, placeholder, value, allowed_origins, headers}]: what its proxy "
    "exchanges from now on [X1]. The same member of computer.start, computer.attach and computer.wake says it, too; without it: nothing",
    "computer.sleep": "`computer`, `fence`, `key`? (base64: what its memory on disk is sealed with): all its processes stand still until "
    "computer.wake [C6]; the slot is given up",
    "computer.wake": "`computer`, `fence`, `key`? (the same), `secret_files`? (as it was started with): they go on; to be attached anew",
    "computer.stop": "`computer`, `fence`: end its processes, keep its files",
    "computer.destroy": "`computer`, `fence`: end it and remove its files",
    "session.start": "`computer`, `channel`, `bundle` (digest), `preload`, `environment` {name: value}, `open` (a session.open payload "
    "without `bundle`)",
    "command.start": "`computer`, `channel`, `argv`, `env` {name: value}, `cwd`?, `stdin` (base64), `timeout_ms`: a program in a scope of "
    "its own [C8]; told of by session.started and session.exited, like a Session process",
    "stream.start": "`computer`, `channel`, `stream`: the opening word of a stream (`protocol/streams.py`), with `env`? and `cwd`? of its "
    "process, in a scope of its own; told of by session.exited",
    "session.kill": "`computer`, `channel`, `reason`",
    "session.forget": "`computer`, `channel`",
    "image.build": "`request`, `environment`, `image` (an ImageManifest), `imports`? {`bundle`: digest, `files`: [path]}: what must be "
    "importable in it [D2]",
    "image.resolve": "`request`, `references`: [text]: what they name now [A7]",
}


def control(kind: str, **members: Any) -> bytes:
    """A control message of slot 0."""
    return SLOT.pack(CONTROL) + jsontext.dumps({"t": kind, **members})


def guest(slot: int, frames: bytes) -> bytes:
    """A message of whole guest frames for the Computer at `slot`."""
    return SLOT.pack(slot) + frames


def split(message: bytes) -> tuple[int, bytes]:
    """The slot and the body of a message."""
    return SLOT.unpack_from(message)[0], message[SLOT.size :]


def pack(messages: Sequence[bytes]) -> bytes:
    """Messages as one network message: each with its length (u32, big-endian) before it."""
    parts: list[bytes] = []
    for message in messages:
        parts.append(SLOT.pack(len(message)))
        parts.append(message)
    return b"".join(parts)


def unpack(data: bytes) -> list[bytes]:
    """The messages of a network message. Raises `ValueError` when `pack` can't have made it."""
    found: list[bytes] = []
    start, end = 0, len(data)
    while start < end:
        if end - start < SLOT.size:
            raise ValueError("A network message ends within a length.")
        body = start + SLOT.size
        start = body + SLOT.unpack_from(data, start)[0]
        if start > end:
            raise ValueError("A network message is shorter than it says.")
        found.append(data[body:start])
    return found


def take(queue: deque[bytes], limit: int = PACKED_BYTES) -> list[bytes]:
    """What goes into the next network message: from the left of `queue`, at least one, up to `limit` bytes."""
    taken = [queue.popleft()]
    size = len(taken[0])
    while queue and size + len(queue[0]) <= limit:
        taken.append(queue.popleft())
        size += len(taken[-1])
    return taken


class Link(Protocol):
    """One end of an established link. Both ends have this form."""

    def send(self, message: bytes) -> None:
        """Queue a message. Never blocks; messages after a loss are dropped, since the next hello attaches anew."""
        ...

    def close(self, reason: str = "") -> None:
        """End the link after what was sent. The other end's `on_closed` is called, once; this end hears nothing more."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted and not yet written; a sender above a few MiB should stop reading its sources."""
        ...


class LinkEnd(Protocol):
    """Who receives. Called in the event loop, in order, never concurrently."""

    on_message: Callable[[bytes], None]
    on_closed: Callable[[], None]
