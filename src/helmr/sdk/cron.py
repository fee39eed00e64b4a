"""`cron()`: a Trigger in an Agent's definition. SPEC [T1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from helmr.protocol import jsontext
from helmr.protocol.content import input_bytes
from helmr.protocol.cron import check_schedule, check_timezone
from helmr.protocol.ids import is_definition_id
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTrigger:
    """A schedule on which new Sessions of the Agent are made. `slack` is a channel id."""

    id: str
    schedule: str
    timezone: str
    input: Any = UNSET
    slack: str | None = None


def cron(id: str, schedule: str, *, timezone: str, input: Any | UnsetType = UNSET, slack: str | None = None) -> CronTrigger:
    """A Trigger that fires by `schedule` (five fields) in the IANA zone `timezone`; each firing is a new Session with `input`.

    Raises `ValueError` for a bad id, schedule or zone, `ContentInvalid` for an input that is no JSON, `ContentLimitExceeded` past 256 KiB.
    """
    if not isinstance(id, str) or not is_definition_id(id):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"The trigger id {id!r} is malformed: letters, digits, dots, dashes and underscores, at most 128.")
    if input is not UNSET:
        jsontext.check(input)
        input_bytes(input)
    return CronTrigger(id=id, schedule=check_schedule(schedule), timezone=check_timezone(timezone), input=input, slack=slack)
