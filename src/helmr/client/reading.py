"""Answers to values."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from helmr.client.transport import Answer
from helmr.protocol.errors import UnreadableAnswer
from helmr.protocol.shapes import Page
from helmr.protocol.wire import WireError, from_wire

T = TypeVar("T")


def read(kind: type[T], answer: Answer) -> T:
    """The value of an answer. Raises `UnreadableAnswer` naming what does not fit."""
    return read_value(kind, answer.json())


def read_value(kind: type[T], data: Any) -> T:
    """A value from decoded JSON. Raises `UnreadableAnswer`."""
    try:
        return from_wire(kind, data, kind.__name__)
    except WireError as error:
        raise UnreadableAnswer(f"The server's answer does not fit: {error}") from None


def read_page(kind: type[T], answer: Answer) -> Page[T]:
    """A page of values."""
    data = answer.json()
    members = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    items, cursor = members.get("items"), members.get("next_cursor")
    if not isinstance(items, list) or not (cursor is None or isinstance(cursor, str)):
        raise UnreadableAnswer("The server's answer is no page.")
    return Page(items=tuple(read_value(kind, item) for item in cast("list[Any]", items)), next_cursor=cursor)
