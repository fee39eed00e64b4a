"""Durations: `"<positive integer><ms|s|m|h|d>"` or a timedelta; `"never"` where said. Held as whole milliseconds."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache

_FORM = re.compile(r"([1-9][0-9]{0,15})(ms|s|m|h|d)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_TEXT = 18
_LONGEST = 100 * 365 * 86_400_000

Duration = str | timedelta


def duration_ms(value: object, name: str = "duration") -> int:
    """Milliseconds of a duration. Raises `ValueError` saying what is allowed; sub-millisecond timedeltas round up."""
    if isinstance(value, timedelta):
        milliseconds = -(-value // timedelta(milliseconds=1))
    elif isinstance(value, str) and len(value) <= _LONGEST_TEXT and (found := _of_text(value)):
        milliseconds = found
    else:
        raise ValueError(f'{name} must be a duration such as "500ms", "30s", "15m", "2h" or "7d", or a timedelta.')
    if not 0 < milliseconds <= _LONGEST:
        raise ValueError(f"{name} must be longer than nothing and at most 100 years.")
    return milliseconds


@lru_cache(maxsize=64)
def _of_text(text: str) -> int | None:
    """Milliseconds, or None for what has not the form. Remembered: clients say the same few again and again."""
    match = _FORM.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else None


def retention_ms(value: object, name: str = "duration") -> int | None:
    """Like `duration_ms`, where `"never"` gives None."""
    return None if value == "never" else duration_ms(value, name)


def format_duration(milliseconds: int) -> str:
    """The shortest exact text of a duration: 90000 -> "90s"."""
    for unit, size in reversed(_UNITS.items()):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    raise AssertionError("every whole number of milliseconds has a text")


def format_retention(milliseconds: int | None) -> str:
    """The text of a retention; None is "never"."""
    return "never" if milliseconds is None else format_duration(milliseconds)
