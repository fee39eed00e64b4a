"""When schedules fire, in the time of their zone. SPEC [T2]. Pure: whoever asks brings the instant.

Two rules, by the hour field:

- *by the clock on the wall*, when it leaves out an hour: each wall time that is named fires once, at the first moment at which that clock
  shows it or has passed it. So one that is skipped fires at the first valid instant after, and one that comes twice fires the first time.
- *by real time*, when it names every hour: each real minute whose wall time is named fires, in a repeated hour too. What is skipped takes
  no real time, so nothing is missing.

Time is walked in spans of one UTC day, cut where the zone's offset changes: within one, instant and wall time differ by a constant
(docs/adr/0010).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from helmr.protocol.cron import Named, read_schedule

_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)
_RUN_UP: Final = 3
"""For so many days before one that is named the wall clock is watched: it goes back by no more than a day, and is no further from UTC."""
_HORIZON: Final = 60 * 366
"""Days without a firing after which there is none: the rarest schedule, 29 February on a given weekday, comes within 40 years."""


class Due(NamedTuple):
    """Instants that have passed: the last of them, and how many there were."""

    latest: datetime
    total: int


class _Span(NamedTuple):
    """Real time of one offset; wall times as naive datetimes. `before`: the latest that the wall clock has shown until it begins."""

    begin: datetime
    end: datetime
    offset: timedelta
    before: datetime

    @property
    def low(self) -> datetime:
        return self.begin.replace(tzinfo=None) + self.offset

    @property
    def high(self) -> datetime:
        return self.end.replace(tzinfo=None) + self.offset


@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule in a zone. All instants that it gives are in UTC, on the minute."""

    named: Named
    times: tuple[int, ...]
    """The minutes of a day that are named, in order."""
    by_wall: bool
    zone: ZoneInfo

    @classmethod
    def read(cls, schedule: str, timezone: str) -> Cron:
        """Raises `ValueError` for a bad schedule, `ZoneInfoNotFoundError` (a `LookupError`) for an unknown zone."""
        named = read_schedule(schedule)
        times = tuple(hour * 60 + minute for hour in sorted(named.hours) for minute in sorted(named.minutes))
        return cls(named, times, len(named.hours) < 24, ZoneInfo(timezone))

    def after(self, instant: datetime) -> Iterator[datetime]:
        """The instants after `instant`, in order, for ever; empty for a schedule that never fires."""
        last = instant.astimezone(UTC)
        for span in self._spans(last):
            for fired in self._within(span, last):
                if fired > last:
                    last = fired
                    yield fired

    def next(self, instant: datetime) -> datetime | None:
        """The first instant after `instant`."""
        return next(self.after(instant), None)

    def upcoming(self, instant: datetime, count: int) -> list[datetime]:
        """The first `count` instants after `instant`."""
        return list(islice(self.after(instant), count))

    def due(self, first: datetime, until: datetime) -> Due | None:
        """What there is from the instant `first` (one of this schedule) up to and including `until`; None when `first` is yet to come.

        Years of minutes are counted in milliseconds.
        """
        if first > until:
            return None
        latest, count = first, 0
        tail: _Span | None = None
        for span in self._spans(first):
            if span.begin > until:
                break
            if first < span.begin and span.end <= until and span.before == span.low:
                # All of it counts, and the wall clock went on where it was: so many as it shows.
                found = self._count(span)
                if found:
                    latest, count, tail = span.begin, count + found, span
                continue
            for fired in self._within(span, first - _MINUTE):
                if first <= fired <= until and (fired > latest or not count):
                    latest, count, tail = fired, count + 1, None
        if tail is not None:
            *_, latest = self._within(tail, tail.begin - _MINUTE)
        # A planned instant stands, though a newer zone database would not have it.
        return Due(latest, max(1, count))

    # --- walking ------------------------------------------------------------------------------------------------------------

    def _spans(self, start: datetime) -> Iterator[_Span]:
        """Spans from the day of `start` on, without those of which no wall time can match."""
        day = start.astimezone(UTC).date() - _RUN_UP * _DAY
        shown: datetime | None = None
        idle = 0
        while idle < _HORIZON:
            near = any(self._matches(day + shift * _DAY) for shift in range(-1, _RUN_UP + 2))
            idle = 0 if near else idle + 1
            if near:
                for begin, end, offset in self._offsets(datetime.combine(day, time(), UTC)):
                    low, high = begin.replace(tzinfo=None) + offset, end.replace(tzinfo=None) + offset
                    yield _Span(begin, end, offset, low if shown is None else shown)
                    shown = high if shown is None else max(shown, high)
            else:
                shown = None  # the clock need not be watched here
            day += _DAY

    def _offsets(self, begin: datetime) -> Iterator[tuple[datetime, datetime, timedelta]]:
        """The UTC day that begins there, cut where the zone's offset changes (at most once a day, on a minute)."""
        end = begin + _DAY
        first, last = self._offset(begin), self._offset(end - _MINUTE)
        if first == last:
            yield begin, end, first
            return
        low, high = 0, 24 * 60 - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(begin + middle * _MINUTE) == first:
                low = middle
            else:
                high = middle
        change = begin + high * _MINUTE
        yield begin, change, first
        yield change, end, last

    def _offset(self, instant: datetime) -> timedelta:
        offset = instant.astimezone(self.zone).utcoffset()
        assert offset is not None
        return offset

    def _within(self, span: _Span, after: datetime) -> Iterator[datetime]:
        """The instants of a span, without most of those up to `after`; the same may come again when several wall times were skipped."""
        if span.end <= after:
            return
        low = span.before if self.by_wall else span.low
        if span.begin <= after:
            low = max(low, after.replace(tzinfo=None) + span.offset)
        for wall in self._walls(low, span.high):
            yield max(span.begin, (wall - span.offset).replace(tzinfo=UTC))

    def _count(self, span: _Span) -> int:
        """How many instants a span has of which the wall clock goes on where it was."""
        found = 0
        for day, low, high in _days(span.low, span.high):
            if self._matches(day):
                found += bisect_left(self.times, high) - bisect_left(self.times, low)
        return found

    def _walls(self, low: datetime, high: datetime) -> Iterator[datetime]:
        """The wall times that are named, from `low` until before `high`."""
        for day, first, end in _days(low, high):
            if self._matches(day):
                midnight = datetime.combine(day, time())
                for minute in self.times[bisect_left(self.times, first) : bisect_left(self.times, end)]:
                    yield midnight + minute * _MINUTE

    def _matches(self, day: date) -> bool:
        named = self.named
        if day.month not in named.months:
            return False
        by_date, by_weekday = day.day in named.days, day.isoweekday() % 7 in named.weekdays
        return (by_date and by_weekday) if named.both else (by_date or by_weekday)


def _days(low: datetime, high: datetime) -> Iterator[tuple[date, int, int]]:
    """The days from `low` until before `high`, with the minutes of each: from, and until before."""
    day = low.date()
    while (midnight := datetime.combine(day, time())) < high:
        first = -(-(max(low, midnight) - midnight) // _MINUTE)
        yield day, first, min(24 * 60, -(-(high - midnight) // _MINUTE))
        day += _DAY
