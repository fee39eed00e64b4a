"""The grammar of cron schedules: five fields, checked before anything is published. SPEC [T1].

A field is `*` or a list of values and ranges, each with an optional `/step`; months and weekdays also by English name; Sunday is 0 or 7.
When a schedule fires is the business of the control plane; this module says only what may be written, what it names, and that it can ever
fire.
"""

from __future__ import annotations

import calendar
import re
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_MONTHS: Final = {"jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12}
_DAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}

_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


class Named(NamedTuple):
    """What the fields of a schedule name. `weekdays` counts from Sunday, 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    both: bool
    """Whether a date must match both the day of month and the weekday: one of the two fields begins with `*`. Else either will do."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


def check_schedule(schedule: object) -> str:
    """The schedule with single spaces. Raises `ValueError` naming the field that is wrong, or that no day ever matches."""
    if not isinstance(schedule, str):
        raise ValueError("A schedule is a text of five fields.")
    named = read_schedule(schedule)
    if named.both and min(named.days) > max(calendar.monthrange(2024, month)[1] for month in named.months):
        raise ValueError(f"The schedule {schedule!r} never fires: none of its months has such a day.")
    return " ".join(schedule.split())


def read_schedule(schedule: str) -> Named:
    """What the schedule names. Raises `ValueError` naming the field that is wrong."""
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"The schedule {schedule!r} has {len(fields)} fields; it needs five: minute hour day month weekday.")
    minutes, hours, days, months, weekdays = (frozenset(_values(text, field)) for text, field in zip(fields, _FIELDS, strict=True))
    return Named(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        both=fields[2].startswith("*") or fields[4].startswith("*"),
    )


def check_timezone(name: object) -> str:
    """The name of an IANA time zone. Raises `ValueError` for a name that isn't in the zone database.

    Where there is no zone database (a small image, in which Agent code is imported again) only the form is checked.
    """
    if not isinstance(name, str) or not _ZONE.fullmatch(name):
        raise ValueError('A time zone is required, by its IANA name such as "Europe/Berlin" or "UTC".')
    if not _is_zone(name) and _is_zone("UTC"):
        raise ValueError(f"{name!r} is no IANA time zone.")
    return name


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):  # OSError: a folder of the database; ValueError: a file that is no zone
        return False
    return True


def _values(text: str, field: _Field) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        body, slash, step_text = item.partition("/")
        step = _number(step_text, field, f"the step of {item!r}") if slash else 1
        if step < 1:
            raise ValueError(f"The {field.name} field {text!r} has a step of nothing.")
        if body == "*":
            low, high = field.low, field.high
        else:
            first, dash, last = body.partition("-")
            low = _value(first, field, text)
            high = _value(last, field, text) if dash else field.high if slash else low
        if low > high:
            raise ValueError(f"The {field.name} field {text!r} has a range that runs backwards.")
        found.update(range(low, high + 1, step))
    return found


def _value(text: str, field: _Field, whole: str) -> int:
    if text.lower() in field.names:
        return field.names[text.lower()]
    value = _number(text, field, repr(whole))
    if not field.low <= value <= field.high:
        raise ValueError(f"The {field.name} field {whole!r} is outside {field.low} to {field.high}.")
    return value


def _number(text: str, field: _Field, where: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise ValueError(f"The {field.name} field is malformed at {where}.")
    return int(text)
