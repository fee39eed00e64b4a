"""When schedules fire, against a clock on the wall that is watched minute by minute. SPEC [T2]."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.effort import examples

from helmr.control.domain.cron import Cron
from helmr.protocol.cron import check_schedule

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Santiago",
    "Australia/Sydney",
    "Europe/London",
    "UTC",
)
ODD_ZONES = ("America/Havana", "Asia/Beirut", "America/St_Johns", "Asia/Kathmandu", "Antarctica/Troll", "Pacific/Chatham")
FIRST, LAST = datetime(2024, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, RUN_UP = timedelta(minutes=1), timedelta(hours=4)
"""No clock goes back by more than a few hours: so long before, nothing that it has shown is in the way."""
SCHEDULES = (
    "* * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "59 * * * *",
    "7,37 * * * *",
    "0 0 * * *",
    "30 0 * * *",
    "59 23 * * *",
    "0 1 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "*/15 2 * * *",
    "* 1-3 * * *",
    "0 */6 * * *",
    "0 */2 * * *",
    "30 0-5,12 * * *",
    "0 9 * * 1-5",
    "0 0 * * 0",
    "0 0 * * 7",
    "0 0 1 * *",
    "0 0 31 * *",
    "0 0 29 2 *",
    "0 0 13 * 5",
    "0 0 */2 * 1",
    "0 0 1-7 * */2",
    "* * 31 3 *",
    "0 * * 3,10 sun",
)
"""Every kind of field, at the hours at which clocks are changed, and away from them."""


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """The minutes from FIRST to LAST at which the offset changes."""
    place, found, hour = ZoneInfo(zone), [], FIRST
    while hour < LAST:
        following = hour + timedelta(hours=1)
        if hour.astimezone(place).utcoffset() != following.astimezone(place).utcoffset():
            minute = hour
            while minute.astimezone(place).utcoffset() == hour.astimezone(place).utcoffset():
                minute += MINUTE
            found.append(minute)
        hour = following
    return tuple(found)


def field(text: str, low: int, high: int, names: str = "") -> set[int]:
    """Read apart from the product's reader."""
    found: set[int] = set()
    words = names.split()
    for part in text.lower().split(","):
        body, _, step = part.partition("/")
        first, _, last = body.partition("-")
        if first == "*":
            ends = low, high
        else:
            number = [words.index(end) + low if end in words else int(end) for end in (first, last or first)]
            ends = number[0], high if step and not last else number[1]
        found |= set(range(ends[0], ends[1] + 1, int(step or 1)))
    return found


@cache
def walls(zone: str, begin: datetime, end: datetime) -> list[int]:
    """What the clock on the wall shows at each real minute of [begin, end), in minutes since the year 1."""
    place, minutes = ZoneInfo(zone), (end - begin) // MINUTE
    shown = ((begin + number * MINUTE).astimezone(place).replace(tzinfo=None) for number in range(minutes))
    return [wall.toordinal() * 1440 + wall.hour * 60 + wall.minute for wall in shown]


class Watcher:
    """Looks at the clock on the wall once each real minute, and remembers what it has shown."""

    def __init__(self, schedule: str, zone: str) -> None:
        minute, hour, day, month, weekday = schedule.split()
        hours = field(hour, 0, 23)
        self.times = {60 * hour + number for hour in hours for number in field(minute, 0, 59)}
        self.days, self.months = field(day, 1, 31), field(month, 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec")
        self.weekdays = {number % 7 for number in field(weekday, 0, 7, "sun mon tue wed thu fri sat")}
        self.both = "*" in (day[0], weekday[0])
        self.real = hours == set(range(24))
        self.zone = zone
        self.known: dict[int, bool] = {}

    def named(self, wall: int) -> bool:
        if wall % 1440 not in self.times:
            return False
        day = wall // 1440
        if day not in self.known:
            date = datetime.fromordinal(day)
            by_date, by_weekday = date.day in self.days, (date.weekday() + 1) % 7 in self.weekdays
            self.known[day] = date.month in self.months and ((by_date and by_weekday) if self.both else (by_date or by_weekday))
        return self.known[day]

    def watch(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """The minutes in [begin, end) at which it fires."""
        minute = begin - RUN_UP
        first, *following = walls(self.zone, minute - MINUTE, end)
        shown = first
        for wall in following:
            fires = self.named(wall) if self.real else False
            while not self.real and shown < wall:
                shown += 1
                fires = fires or self.named(shown)
            if fires and minute >= begin:
                yield minute
            minute += MINUTE


def stretches(zone: str) -> list[tuple[datetime, datetime]]:
    """A day on both sides of each change, and the end of February in a leap year."""
    day = timedelta(days=1)
    return [(change - day, change + day) for change in changes(zone)] + [
        (datetime(2024, 2, 28, 12, tzinfo=UTC), datetime(2024, 3, 1, 12, tzinfo=UTC))
    ]


def check(schedule: str, zone: str, begin: datetime, end: datetime) -> None:
    cron = Cron.read(check_schedule(schedule), zone)
    expected = list(Watcher(schedule, zone).watch(begin, end))
    found = []
    for instant in cron.after(begin - MINUTE):
        if instant >= end:
            break
        found.append(instant)
    assert found == expected, f"{schedule} in {zone}"
    for place, instant in enumerate(expected[:3]):
        assert cron.next(instant - MINUTE) == cron.next(instant - timedelta(seconds=1)) == instant
        due = cron.due(instant, end - MINUTE)
        assert due is not None
        assert (due.latest, due.total) == (expected[-1], len(expected) - place), f"{schedule} in {zone} from {instant}"


@pytest.mark.ud("UD-71")
@pytest.mark.parametrize("zone", ZONES)
def test_a_schedule_fires_as_whoever_watches_the_clock_on_the_wall_says(zone: str) -> None:
    """[T2], at every change of two years."""
    for begin, end in stretches(zone):
        for schedule in SCHEDULES:
            check(schedule, zone, begin, end)


@pytest.mark.ud("UD-71")
@pytest.mark.parametrize("zone", ZONES + ODD_ZONES)
def test_a_daily_schedule_gives_every_date_once_over_two_years(zone: str) -> None:
    """Midnight, where it exists and where it doesn't, and the hours around."""
    place = ZoneInfo(zone)
    for schedule in ("0 0 * * *", "30 0 * * *", "30 2 * * *", "59 23 * * *"):
        first = Cron.read(schedule, zone)
        found = []
        for instant in first.after(datetime(2024, 1, 1, 12, tzinfo=UTC)):
            if instant > datetime(2026, 1, 1, 12, tzinfo=UTC):
                break
            found.append(instant.astimezone(place).date())
        assert len(found) == len(set(found)) == 731
        assert found == [found[0] + timedelta(days=number) for number in range(731)]


_NUMBERS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 2))):
        first = draw(st.integers(low, high))
        last = draw(st.integers(first, high))
        body = draw(st.sampled_from(["*", "*", str(first), f"{first}-{last}"]))
        parts.append(body + draw(st.sampled_from(["", "", f"/{draw(st.integers(1, 30))}"])))
    return ",".join(parts)


@st.composite
def schedules(draw: st.DrawFn) -> str:
    kinds = [draw(st.one_of(st.just("*"), fields(low, high))) for low, high in _NUMBERS.values()]
    # Mostly at the hours at which clocks change.
    kinds[1] = draw(st.sampled_from([kinds[1], "*", "0-3", "23,0", "2", "0", "*/3"]))
    return " ".join(kinds)


@examples(40)
@given(schedules(), st.sampled_from(ZONES + ODD_ZONES), st.randoms(use_true_random=False))
@example("0 0 31 2 */2", "UTC", None)
def test_so_does_any_other_schedule(schedule: str, zone: str, random: object) -> None:
    """[T2]"""
    try:
        check_schedule(schedule)
    except ValueError as error:
        assert "never fires" in str(error)
        return
    choices = stretches(zone)
    begin, end = choices[random.randrange(len(choices))]  # type: ignore[attr-defined]
    check(schedule, zone, begin, end)


@pytest.mark.parametrize("zone", ["America/Sao_Paulo", "Pacific/Apia", "Europe/Dublin", "Asia/Gaza"])
def test_changes_of_the_past_are_as_good(zone: str) -> None:
    """Midnight gaps, a day that was left out, and a clock that goes back before midnight."""
    for begin in (datetime(2011, 12, 28, tzinfo=UTC), datetime(2018, 11, 3, tzinfo=UTC), datetime(2018, 2, 16, tzinfo=UTC)):
        for schedule in ("0 0 * * *", "*/20 * * * *", "30 23,0 * * *", "0 12 30 * *"):
            check(schedule, zone, begin, begin + timedelta(days=4))


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        # A wall time that doesn't exist: once, at the first valid instant.
        ("30 2 * * *", "Europe/Berlin", "2025-03-30T00:00Z", ["2025-03-30T01:00Z", "2025-03-31T00:30Z"]),
        ("0 0 * * *", "Africa/Cairo", "2025-04-24T12:00Z", ["2025-04-24T22:00Z", "2025-04-25T21:00Z"]),
        ("0 0 * * *", "America/Santiago", "2024-09-07T12:00Z", ["2024-09-08T04:00Z", "2024-09-09T03:00Z"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2025-10-04T12:00Z", ["2025-10-04T15:30Z", "2025-10-05T15:15Z"]),
        # One that comes twice: once, the first time.
        ("30 2 * * *", "Europe/Berlin", "2025-10-25T12:00Z", ["2025-10-26T00:30Z", "2025-10-27T01:30Z"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2025-04-05T12:00Z", ["2025-04-05T14:45Z", "2025-04-06T15:15Z"]),
        # Hourly, in real time.
        ("0 * * * *", "America/New_York", "2025-11-02T04:30Z", ["2025-11-02T05:00Z", "2025-11-02T06:00Z", "2025-11-02T07:00Z"]),
        ("30 * * * *", "America/New_York", "2025-03-09T06:00Z", ["2025-03-09T06:30Z", "2025-03-09T07:30Z", "2025-03-09T08:30Z"]),
    ],
)
def test_some_known_days(schedule: str, zone: str, after: str, expected: list[str]) -> None:
    """Worked out by hand, so that product and watcher can't be wrong together."""
    found = Cron.read(schedule, zone).upcoming(datetime.fromisoformat(after), len(expected))
    assert found == [datetime.fromisoformat(text) for text in expected]


def test_a_rare_schedule_is_found_and_an_impossible_one_ends() -> None:
    leap = Cron.read("0 0 29 2 */7", "UTC")
    assert leap.upcoming(datetime(2026, 1, 1, tzinfo=UTC), 1) == [datetime(2032, 2, 29, tzinfo=UTC)]
    assert leap.next(datetime(2088, 3, 1, tzinfo=UTC)) == datetime(2128, 2, 29, tzinfo=UTC)
    assert Cron.read("0 0 30 2 *", "UTC").next(FIRST) is None


def test_what_was_missed_is_counted_whatever_the_time_away() -> None:
    """UD-74: minutes of years are no reason to stand still."""
    begin, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    for zone in ("Europe/Berlin", "Australia/Lord_Howe"):
        due = Cron.read("* * * * *", zone).due(begin, end)
        assert due == (end, (end - begin) // MINUTE + 1)
    weekly = Cron.read("0 9 * * 1", "Europe/Berlin")
    first = weekly.next(begin)
    assert first is not None
    assert weekly.due(first, end) == (datetime(2025, 12, 29, 8, tzinfo=UTC), 313)
    assert weekly.due(first, first) == (first, 1)
    assert weekly.due(first, first - MINUTE) is None
    assert weekly.due(first + MINUTE, first + 2 * MINUTE) == (first + MINUTE, 1), "an instant of an older zone database"
