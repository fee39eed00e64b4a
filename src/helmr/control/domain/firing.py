"""Which of the instants that have come a trigger fires for. SPEC [T3], UD-74.

Of all that have passed since somebody last looked, the latest fires, if it is not older than the grace; the others are missed. One that
waits for an admission token gives way to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from helmr.control.domain.cron import Cron


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringDecision:
    planned_at: datetime
    """The instant to fire for, or to record as missed."""
    late: bool
    """It is older than the grace: it doesn't fire."""
    displaces: bool
    """The instant that waited for a token is missed now."""
    passed: int
    """Instants right before `planned_at` that are missed and recorded with it."""
    missed: int
    """All that are newly missed."""
    next_at: datetime | None
    """What comes after all that; None: nothing, since the window is closed or the schedule has no more."""


def decide_firing(
    cron: Cron, *, planned_at: datetime, now: datetime, closed_at: datetime | None, grace: timedelta, waiting: bool
) -> FiringDecision | None:
    """What is to be done at `now` about the instants from `planned_at` on; None when it is yet to come.

    `waiting`: `planned_at` was recorded before, and waits for a token.
    """
    until = now if closed_at is None else min(now, closed_at)
    due = cron.due(planned_at, until)
    if due is None:
        return None
    late = now - due.latest > grace
    displaces = waiting and due.total > 1
    return FiringDecision(
        planned_at=due.latest,
        late=late,
        displaces=displaces,
        passed=due.total - 1 - displaces,
        missed=due.total - 1 + late,
        next_at=cron.next(until) if closed_at is None else None,
    )
