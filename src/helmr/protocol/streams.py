"""Streams: bytes to and from something in a Computer: the terminal of a shell, a file or a tree of files, a TCP port. SPEC [C8].

A stream has two ends: a client, and a process of ours in a scope of its own in the Computer. What they say to each other are *data* (bytes)
and *words* (JSON objects whose member "t" names their kind); the control plane and the worker between them pass both on. In a guest frame,
which has op 0, the payload is a zero byte and the data, or the word; on a WebSocket data are binary messages and words are text.

Nothing waits without a bound: each end may have `WINDOW_BYTES` of data on the way that the other has not said to have taken (`credit`).
A stream is not stored: when a connection on its way is lost, it is over, and what it ran in the Computer is ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from helmr.protocol import jsontext
from helmr.protocol.limits import KIB

StreamKind = Literal["shell", "read", "write", "forward"]

WINDOW_BYTES: Final = 256 * KIB
PIECE_BYTES: Final = 32 * KIB
"""The most data of one message."""
WORD_BYTES: Final = 16 * KIB
STREAMS: Final = 32
"""How many streams a Computer has at once."""

DOWN: Final = {
    "open": "`kind`; shell: `argv`?, `rows`, `columns`; read: `path`, `form` (file, tree); write: `path`, `form`, `mode`?, `name`?; "
    "forward: `port`. The first word, which the control plane says",
    "credit": "`bytes`: so many more bytes of the other end's data were taken",
    "eof": "no data comes any more",
    "resize": "`rows`, `columns`: of the terminal",
    "hangup": "the client is gone: SIGHUP to the shell, and soon the end of all that it started",
}
UP: Final = {
    "ready": "the shell runs, the file is open, the port took the connection; `size`? of the file",
    "credit": "as above",
    "eof": "as above",
    "done": "`bytes`, `entries`: all is read, or written and in its place; `left_out`?: what can't be copied",
    "exit": "`code` or `signal`: how the shell ended",
    "failed": "`code` (one of `FAILURES`), `message`; the last word",
}
FAILURES: Final = ("path_not_found", "path_refused", "port_refused", "stream_broken")

Message = bytes | Mapping[str, Any]


def data_payload(data: bytes) -> bytes:
    """Data as the payload of a guest frame."""
    return b"\0" + data


def word(kind: str, **members: Any) -> bytes:
    """A word as JSON: the payload of a guest frame, or a text message."""
    return jsontext.dumps({"t": kind, **members})


class StreamError(Exception):
    """What came is no message of a stream."""


def read_payload(payload: bytes) -> Message:
    """The message in the payload of a guest frame. Raises `StreamError`."""
    if payload[:1] == b"\0":
        if len(payload) > PIECE_BYTES + 1:
            raise StreamError(f"A piece of {len(payload) - 1} bytes is too long.")
        return payload[1:]
    return read_word(payload)


def read_word(text: bytes) -> Mapping[str, Any]:
    """A word from its JSON. Raises `StreamError`."""
    if len(text) > WORD_BYTES:
        raise StreamError(f"A word of {len(text)} bytes is too long.")
    try:
        said = jsontext.loads(text)
    except jsontext.JsonSyntaxError as error:
        raise StreamError(error.detail) from None
    if not isinstance(said, dict) or not isinstance(cast("Any", said).get("t"), str):
        raise StreamError("A word is an object that says its kind.")
    return cast("Mapping[str, Any]", said)


def whole(said: Mapping[str, Any], name: str, most: int) -> int:
    """The member `name`, a number from 0 to `most`. Raises `StreamError`."""
    value = said.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise StreamError(f"`{name}` is no number from 0 to {most}.")
    return value
