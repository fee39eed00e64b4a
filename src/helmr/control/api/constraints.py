"""What a member of a request must be beyond its type.

Written in the type (`Annotated[str, Bytes(1, 512)]`), obeyed by the reader, told by OpenAPI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from helmr.protocol import ids
from helmr.protocol.duration import duration_ms


@runtime_checkable
class Constraint(Protocol):
    """A check that may also change the value's form."""

    def admit(self, value: Any) -> Any:
        """The value to use. Raises `ValueError` whose text goes on from the member's name: "must be ..."."""
        ...

    def schema(self) -> dict[str, Any]:
        """What it adds to a JSON Schema."""
        ...


@dataclass(frozen=True, slots=True)
class Bytes:
    """The size of a text in UTF-8."""

    least: int
    most: int

    def admit(self, value: str) -> str:
        if not self.least <= len(value.encode("utf-8")) <= self.most:
            raise ValueError(f"must be {self.least} to {self.most} bytes of text")
        return value

    def schema(self) -> dict[str, Any]:
        return {"minLength": 1 if self.least else 0, "maxLength": self.most, "description": f"{self.least} to {self.most} bytes of UTF-8."}


@dataclass(frozen=True, slots=True)
class Between:
    """The range of a whole number."""

    least: int
    most: int

    def admit(self, value: int) -> int:
        if not self.least <= value <= self.most:
            raise ValueError(f"must be from {self.least} to {self.most}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class AtMost:
    """The length of a list or the number of an object's members."""

    most: int

    def admit(self, value: Any) -> Any:
        if len(value) > self.most:
            raise ValueError(f"must have at most {self.most} members")
        return value

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Id:
    """An id of ours."""

    def admit(self, value: str) -> str:
        if not ids.is_id(value):
            raise ValueError("must be an id (a lower-case UUID)")
        return value

    def schema(self) -> dict[str, Any]:
        return {"format": "uuid"}


@dataclass(frozen=True, slots=True)
class Matches:
    """The form of a text."""

    pattern: str
    what: str

    def admit(self, value: str) -> str:
        if re.fullmatch(self.pattern, value) is None:
            raise ValueError(f"must be {self.what}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^(?:{self.pattern})$", "description": f"{self.what[0].upper()}{self.what[1:]}."}


@dataclass(frozen=True, slots=True)
class Wait:
    """A duration of at most `most` seconds."""

    most: int

    def admit(self, value: str) -> str:
        try:
            milliseconds = duration_ms(value)
        except ValueError:
            raise ValueError('must be a duration such as "500ms" or "30s"') from None
        if milliseconds > self.most * 1000:
            raise ValueError(f'must be at most "{self.most}s"')
        return value

    def schema(self) -> dict[str, Any]:
        return {"pattern": "^[1-9][0-9]*(ms|s|m)$", "description": f'A duration of at most "{self.most}s".'}


@dataclass(frozen=True, slots=True)
class Instant:
    """A time of RFC 3339, which says its offset."""

    def admit(self, value: str) -> str:
        try:
            found = datetime.fromisoformat(value)
            if found.tzinfo is None:
                raise ValueError
            return found.astimezone(UTC).isoformat()
        except (ValueError, OverflowError):
            raise ValueError('must be a time with its offset, such as "2026-11-30T08:00:00Z"') from None

    def schema(self) -> dict[str, Any]:
        return {"format": "date-time"}
