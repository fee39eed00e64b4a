"""What each end of a process means, as a table. SPEC [S13], [S14]."""

from __future__ import annotations

from typing import get_args

import pytest

from helmr.control.domain.processes import AfterEnd, End, after_end
from helmr.protocol.states import RecoveryReason

STRIKES: tuple[tuple[End, RecoveryReason, str], ...] = (
    ("process_lost", "process_lost", "process_lost"),
    ("out_of_memory", "out_of_memory", "out_of_memory"),
    ("init_failed", "process_lost", "process_lost"),
    ("init_timeout", "process_lost", "process_lost"),
)
"""Each loss and each failed or lost `init`: the reason for the next process, and the code for a Turn that ran."""

NO_STRIKES: tuple[tuple[End, RecoveryReason | None, str, bool], ...] = (
    ("asked", None, "process_lost", False),
    ("drained", None, "process_lost", False),
    ("worker_lost", "worker_lost", "worker_lost", False),
    ("memory_lost", "memory_not_restored", "process_lost", False),
    ("history_lost", "process_lost", "history_lost", False),
    ("cleanup_failed", "cleanup_failed", "process_lost", True),
)
"""The same, and whether a person must resume the Session at once."""


def test_the_table_has_every_end() -> None:
    assert {row[0] for row in (*STRIKES, *NO_STRIKES)} == set(get_args(End))


@pytest.mark.parametrize(("end", "reason", "code"), STRIKES)
def test_a_strike_backs_off_a_second_then_four_and_the_third_in_a_row_holds(end: End, reason: RecoveryReason, code: str) -> None:
    """[S14]."""
    first, second, third = (after_end(end, strikes) for strikes in range(3))
    assert first == AfterEnd(strikes=1, retry_ms=1_000, hold=False, recovery_reason=reason, error_code=code)
    assert second == AfterEnd(strikes=2, retry_ms=4_000, hold=False, recovery_reason=reason, error_code=code)
    assert (third.strikes, third.hold, third.recovery_reason, third.error_code) == (3, True, reason, code)


@pytest.mark.parametrize("strikes", range(3))
@pytest.mark.parametrize(("end", "reason", "code", "hold"), NO_STRIKES)
def test_what_is_nobodys_fault_is_no_strike_and_waits_for_nothing(
    end: End, reason: RecoveryReason | None, code: str, hold: bool, strikes: int
) -> None:
    """[S14]: `worker_lost`, drains and failed hibernations; a failed cleanup demands a person whatever the count [S13]."""
    assert after_end(end, strikes) == AfterEnd(strikes=strikes, retry_ms=0, hold=hold, recovery_reason=reason, error_code=code)
