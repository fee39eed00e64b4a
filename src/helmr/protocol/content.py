"""Content: lists of text and JSON parts, and their limits. SPEC [E5], [E6], [S1]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict, cast

from helmr.protocol import jsontext
from helmr.protocol.errors import ContentInvalid, ContentKindUnsupported, ContentLimitExceeded, InputEmpty
from helmr.protocol.limits import CONTENT_BYTES, CONTENT_PARTS, INPUT_BYTES


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


class JsonPart(TypedDict):
    type: Literal["json"]
    value: Any


ContentPart: TypeAlias = TextPart | JsonPart
Content: TypeAlias = Sequence[ContentPart]
InputContent: TypeAlias = Sequence[TextPart]
HumanContent: TypeAlias = Content | str


def text(value: str) -> TextPart:
    """A text part. Raises `TypeError` unless `value` is a str."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("text() takes a str.")
    return {"type": "text", "text": value}


def json_part(value: Any) -> JsonPart:
    """A JSON part, atomic in output. Raises `ContentInvalid` unless `value` is finite JSON."""
    jsontext.check(value)
    return {"type": "json", "value": value}


def normalize(value: object, limit: int = CONTENT_BYTES) -> tuple[list[ContentPart], bytes]:
    """The parts of Content or its string shorthand, and their stored encoding.

    A str is one text part. Raises `ContentInvalid` for another shape and `ContentLimitExceeded` past `limit` bytes of the
    normalized encoding or 64 parts as sent; adjacent text parts concatenate exactly.
    """
    if isinstance(value, str):
        parts: list[ContentPart] = [{"type": "text", "text": value}]
        data = b'[{"type":"text","text":' + jsontext.text(value) + b"}]"
    else:
        parts = _merged(value)
        data = jsontext.dumps(parts)
    if len(data) > limit:
        raise ContentLimitExceeded(f"The content is {len(data)} bytes; at most {limit} are allowed.")
    return parts, data


def _merged(value: object) -> list[ContentPart]:
    if not isinstance(value, (list, tuple)):
        raise ContentInvalid("Content is a str or a list of text and JSON parts.")
    items = cast("Sequence[object]", value)
    if len(items) > CONTENT_PARTS:
        raise ContentLimitExceeded(f"The content has {len(items)} parts; at most {CONTENT_PARTS} are allowed.")
    parts: list[ContentPart] = []
    for item in items:
        part = _part(item)
        last = parts[-1] if parts else None
        if part["type"] == "text" and last is not None and last["type"] == "text":
            parts[-1] = {"type": "text", "text": last["text"] + part["text"]}
        else:
            parts.append(part)
    return parts


def _part(item: object) -> ContentPart:
    part = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
    if part.get("type") == "text" and isinstance(part.get("text"), str) and len(part) == 2:
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "json" and "value" in part and len(part) == 2:
        return {"type": "json", "value": part["value"]}
    raise ContentInvalid('Each part is {"type": "text", "text": ...} or {"type": "json", "value": ...}.')


def input_content(value: object) -> list[TextPart]:
    """Check the input of a text Agent, or a message: a list of text parts with some text [S1].

    Raises `TypeError` for a str, `InputEmpty` for no text, `ContentKindUnsupported` for another part or shape.
    """
    if isinstance(value, str):
        raise TypeError('Text input is a list of parts: pass [text("...")], not a str.')
    if value is None:
        raise InputEmpty("A text Agent's input is a list of text parts, and null is none.")
    if not isinstance(value, (list, tuple)):
        raise ContentKindUnsupported("A text Agent's input is a list of text parts.")
    items = cast("Sequence[object]", value)
    if len(items) > CONTENT_PARTS:
        raise ContentLimitExceeded(f"The input has {len(items)} parts; at most {CONTENT_PARTS} are allowed.")
    parts: list[TextPart] = []
    for item in items:
        part = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        if part.get("type") != "text" or not isinstance(part.get("text"), str) or len(part) != 2:
            raise ContentKindUnsupported('Each part of a text input is {"type": "text", "text": ...}.')
        parts.append({"type": "text", "text": part["text"]})
    if not any(part["text"] for part in parts):
        raise InputEmpty("The input has no text. Leave it out to make a Session without a Turn.")
    return parts


def input_bytes(value: object) -> bytes:
    """The stored encoding of an input. Raises `ContentInvalid`, and `ContentLimitExceeded` past 256 KiB [S1]."""
    data = jsontext.dumps(value)
    if len(data) > INPUT_BYTES:
        raise ContentLimitExceeded(f"The input is {len(data)} bytes; at most {INPUT_BYTES} are allowed.")
    return data


def input_content_bytes(parts: Sequence[TextPart]) -> bytes:
    """What `input_bytes` makes of parts that `input_content` checked, in a third of its time."""
    data = b'[{"type":"text","text":' + b'},{"type":"text","text":'.join([jsontext.text(part["text"]) for part in parts]) + b"}]"
    if len(data) > INPUT_BYTES:
        raise ContentLimitExceeded(f"The input is {len(data)} bytes; at most {INPUT_BYTES} are allowed.")
    return data


def as_text(content: Content) -> str:
    """The text of Content, JSON parts left out."""
    return "".join(part["text"] for part in content if part["type"] == "text")
