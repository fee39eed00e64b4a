"""What a request may ask: keys, labels, inputs, cursors. SPEC [S1], [S3], [S25]."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from helmr.protocol.content import input_bytes, input_content, input_content_bytes
from helmr.protocol.errors import InputEmpty, InvalidCursor, InvalidValue
from helmr.protocol.ids import is_id
from helmr.protocol.limits import KEY_BYTES, LABEL_BYTES, LABELS


def check_session_key(key: str | None) -> None:
    if key is not None and not 1 <= len(key.encode()) <= KEY_BYTES:
        raise InvalidValue(f"A Session key is 1 to {KEY_BYTES} bytes of UTF-8.")
    if key is not None and "\0" in key:
        raise InvalidValue("A Session key holds no NUL.")


def check_computer_key(key: str | None) -> None:
    if key is not None and not 1 <= len(key.encode()) <= KEY_BYTES:
        raise InvalidValue(f"A Computer key is 1 to {KEY_BYTES} bytes of UTF-8.")
    if key is not None and "\0" in key:
        raise InvalidValue("A Computer key holds no NUL.")


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    if len(labels) > LABELS:
        raise InvalidValue(f"A Session has at most {LABELS} labels.")
    for name, value in labels.items():
        for text in (name, value):
            if "\0" in text or len(text.encode()) > LABEL_BYTES:
                raise InvalidValue(f"A label's name and value are at most {LABEL_BYTES} bytes each, without NUL.")
        if not name or ":" in name:
            raise InvalidValue("A label's name is not empty and has no colon.")
    return dict(labels)


def check_input(kind: str, value: Any) -> bytes:
    """The stored input of an Agent of that kind [S1]. Schemas are evaluated in the guest only."""
    if kind == "text":
        if isinstance(value, str):
            raise InvalidValue(
                "A text Agent's input is a list of text parts, not a string.", hint='Send [{"type": "text", "text": "..."}].'
            )
        return input_content_bytes(input_content(value))
    if value == []:
        raise InputEmpty("The input is an empty list. Leave it out to make a Session without a Turn.")
    return input_bytes(value)


def encode_cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    """Raises `InvalidCursor` for what is none of ours."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise InvalidCursor() from None
    if not is_id(text):
        raise InvalidCursor()
    return text
