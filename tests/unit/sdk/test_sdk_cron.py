"""Triggers as they are written. SPEC [T1]."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import pytest

from helmr import UNSET, cron, text
from helmr.protocol.errors import HelmrError


@pytest.mark.parametrize(
    "schedule", ["* * * * *", "0 9 * * 1-5", "*/5 0,12 1-15/2 jan,MAR-may sun", "59 23 31 12 7", "0 0 29 2 *", "5/10 * * * *", "0 0 31 2 1"]
)
def test_a_schedule_of_the_grammar_is_taken(schedule: str) -> None:
    made = cron("t", f"  {schedule} ", timezone="Europe/Berlin", input=[text("go")])
    assert (made.schedule, made.timezone, made.slack) == (schedule, "Europe/Berlin", None)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("* * * *", "4 fields"),
        ("* * * * * *", "6 fields"),
        ("", "0 fields"),
        ("@daily", "1 fields"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of week"),
        ("5-1 * * * *", "backwards"),
        ("*/0 * * * *", "step"),
        ("*/x * * * *", "malformed"),
        ("1, * * * *", "malformed"),
        ("-1 * * * *", "malformed"),
        ("* * * foo *", "malformed"),
        ("٣ * * * *", "malformed"),
        ("0 0 31 2,4,6 *", "never fires"),
        ("0 0 30 feb *", "never fires"),
        (None, "text"),
    ],
)
def test_a_schedule_that_is_wrong_or_never_fires_says_why(schedule: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cron("t", schedule, timezone="UTC")


@pytest.mark.parametrize("zone", ["", "Berlin", "UTC+2", "../../etc/passwd", "/etc/localtime", None, "Europe/Berlin\0"])
def test_a_zone_is_an_iana_name(zone: Any) -> None:
    with pytest.raises(ValueError):
        cron("t", "0 9 * * *", timezone=zone)


def test_an_input_is_checked_where_it_is_written_and_null_is_one() -> None:
    assert cron("t", "0 9 * * *", timezone="UTC").input is UNSET
    assert cron("t", "0 9 * * *", timezone="UTC", input=None).input is None
    for wrong in (float("nan"), object(), "x" * 300_000):
        with pytest.raises(HelmrError):
            cron("t", "0 9 * * *", timezone="UTC", input=wrong)
    with pytest.raises(ValueError, match="trigger id"):
        cron("a b", "0 9 * * *", timezone="UTC")


def test_without_a_zone_database_only_the_form_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agent files are imported again inside images, which may have none."""
    monkeypatch.setattr("helmr.protocol.cron.ZoneInfo", _no_zones)
    assert cron("t", "0 9 * * *", timezone="Europe/Berlin").timezone == "Europe/Berlin"
    with pytest.raises(ValueError):
        cron("t", "0 9 * * *", timezone="../UTC")


def _no_zones(name: str) -> None:
    raise ZoneInfoNotFoundError(name)
