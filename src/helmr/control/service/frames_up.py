"""Decoding what Session processes say. Guests are hostile: shape, size and depth are checked before anything is stored (I4)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from helmr.control.domain.redaction import Redactor
from helmr.protocol import jsontext
from helmr.protocol.errors import HelmrError
from helmr.protocol.limits import CONTENT_BYTES, CONTENT_PARTS, JSON_DEPTH, RESPONSE_BYTES, RESULT_BYTES
from helmr.protocol.questions import normalize_question

_ABSENT: Final = msgspec.Raw(b"")


class FrameRefused(Exception):
    """The frame breaks the protocol; its process must end."""


_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class Up(msgspec.Struct):
    """One frame upwards; `t` says which members count."""

    t: str
    turn: str = ""
    r: int = 0
    content: msgspec.Raw = _ABSENT
    status: str = ""
    result: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    cause: str = ""
    id: str = ""
    reason: str = ""
    delivery: str = ""
    question: msgspec.Raw = _ABSENT
    ask: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    detail: str = ""
    outputs: list[tuple[_Number, _Number]] = []


class _Text(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str


class _Json(msgspec.Struct, tag_field="type", tag="json", forbid_unknown_fields=True):
    value: msgspec.Raw


class _Error(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[a-z0-9_]+$")]
    message: str | None = None
    details: dict[str, Any] | None = None


_up: Final = msgspec.json.Decoder(Up)
_content: Final = msgspec.json.Decoder(list[_Text | _Json])
_error: Final = msgspec.json.Decoder(_Error)
_encoder: Final = msgspec.json.Encoder()


def decode(payload: bytes) -> Up:
    """Raises `FrameRefused`."""
    try:
        return _up.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameRefused(f"a frame is malformed: {error}") from None


def content(raw: msgspec.Raw, limit: int = CONTENT_BYTES) -> bytes:
    """The stored bytes of a normalized Content list. Raises `FrameRefused`."""
    data = bytes(raw)
    if len(data) > limit:
        raise FrameRefused(f"content of {len(data)} bytes; at most {limit} are allowed")
    try:
        parts = _content.decode(data)
        if len(parts) > CONTENT_PARTS:
            raise FrameRefused(f"content of {len(parts)} parts; at most {CONTENT_PARTS} are allowed")
        if b"\n" in data or b"\r" in data or _encoder.encode(parts) != data:
            return _encoded_anew(data, limit)
        for part in parts:
            if isinstance(part, _Json):
                _loaded(bytes(part.value))
            elif "\\u" in part.text or b"\\u" in data:
                part.text.encode("utf-8")
    except (msgspec.MsgspecError, UnicodeError, RecursionError, HelmrError) as error:
        raise FrameRefused(f"content is malformed: {error}") from None
    return data


def _loaded(data: bytes) -> Any:
    """What JSON says, if all who will read it can: no name twice, nested no deeper than ours is. Raises `ContentInvalid`."""
    value = jsontext.loads(data)
    if data.count(b"[") + data.count(b"{") > JSON_DEPTH:
        jsontext.check(value)
    return value


def _encoded_anew(data: bytes, limit: int) -> bytes:
    """JSON of other spacing, escapes or order as we store it: compact, and above all in one line, since events are lines of a stream.

    Raises `ContentInvalid` and `FrameRefused`.
    """
    again = jsontext.dumps(_loaded(data))
    if len(again) > limit:
        raise FrameRefused(f"JSON of {len(again)} bytes; at most {limit} are allowed")
    return again


def response(raw: msgspec.Raw) -> bytes | None:
    """The stored response, or None when none was given."""
    return content(raw, RESPONSE_BYTES) if bytes(raw) else None


def result(raw: msgspec.Raw) -> bytes | None:
    """The stored result, or None when none was given; a null result is b"null"."""
    data = bytes(raw)
    if not data:
        return None
    if len(data) > RESULT_BYTES:
        raise FrameRefused(f"a result of {len(data)} bytes; at most {RESULT_BYTES} are allowed")
    try:
        if b"\n" in data or b"\r" in data:
            return _encoded_anew(data, RESULT_BYTES)
        _loaded(data)
    except HelmrError as error:
        raise FrameRefused(f"the result is malformed: {error.detail}") from None
    return data


def question(raw: msgspec.Raw) -> bytes:
    """The stored form of a question, checked again as the guest did when it asked [Q2]. Raises `FrameRefused`."""
    data = bytes(raw)
    if len(data) > CONTENT_BYTES:
        raise FrameRefused(f"a question of {len(data)} bytes; at most {CONTENT_BYTES} are allowed")
    try:
        return normalize_question(jsontext.loads(data))[1]
    except HelmrError as error:
        raise FrameRefused(f"a question is malformed: {error.detail}") from None


def error(raw: msgspec.Raw, redactor: Redactor) -> tuple[bytes, bytes] | None:
    """The stored error, and the event's data of it (code and message), or None when none was given. Without values of Secrets [X2]."""
    data = bytes(raw)
    if not data:
        return None
    if len(data) > CONTENT_BYTES:
        raise FrameRefused(f"an error of {len(data)} bytes; at most {CONTENT_BYTES} are allowed")
    try:
        found = _error.decode(data)
        members = {"code": found.code} | ({"message": redactor.text(found.message)} if found.message else {})
        event = jsontext.dumps(members)
        stored = jsontext.dumps(members | {"details": redactor.json(found.details)}) if found.details else event
    except (msgspec.MsgspecError, UnicodeError, RecursionError, HelmrError) as caught:
        raise FrameRefused(f"an error is malformed: {caught}") from None
    return stored, event
