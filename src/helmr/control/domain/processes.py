"""What a process's end means: strikes, back-off, holds, recovery. SPEC [S13], [S14]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from helmr.protocol.limits import STRIKES
from helmr.protocol.states import RecoveryReason

BACK_OFF_MS: Final = (1_000, 4_000)
"""How long to wait before the second and the third try."""

End = Literal[
    "asked", "process_lost", "out_of_memory", "cleanup_failed", "worker_lost", "init_failed", "init_timeout", "drained", "memory_lost",
    "history_lost",
]  # fmt: skip
"""Why a Session's process ended. asked: it was told to; drained: its host gave it back; memory_lost: it slept and could
not be woken; history_lost: it did what this database, restored from a copy, knows nothing of [I11]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterEnd:
    """What follows: the strikes now, the wait before another process, and whether a `process_failed` hold is placed."""

    strikes: int
    retry_ms: int
    hold: bool
    recovery_reason: RecoveryReason | None
    error_code: str
    """The code for a Turn that ran [S14]."""


def after_end(end: End, strikes: int) -> AfterEnd:
    """A loss, or a failed or lost `init`, is a strike; three in a row demand a person. A failed cleanup demands one at once [S13].

    `worker_lost`, `history_lost`, a failed hibernation and an orderly end are no strikes.
    """
    if end == "cleanup_failed":
        return AfterEnd(strikes=strikes, retry_ms=0, hold=True, recovery_reason="cleanup_failed", error_code="process_lost")
    if end in ("asked", "drained", "worker_lost"):
        reason: RecoveryReason | None = "worker_lost" if end == "worker_lost" else None
        code = "worker_lost" if end == "worker_lost" else "process_lost"
        return AfterEnd(strikes=strikes, retry_ms=0, hold=False, recovery_reason=reason, error_code=code)
    if end == "history_lost":
        return AfterEnd(strikes=strikes, retry_ms=0, hold=False, recovery_reason="process_lost", error_code="history_lost")
    if end == "memory_lost":
        return AfterEnd(strikes=strikes, retry_ms=0, hold=False, recovery_reason="memory_not_restored", error_code="process_lost")
    struck = strikes + 1
    return AfterEnd(
        strikes=struck,
        retry_ms=BACK_OFF_MS[min(struck, len(BACK_OFF_MS)) - 1],
        hold=struck >= STRIKES,
        recovery_reason="out_of_memory" if end == "out_of_memory" else "process_lost",
        error_code="out_of_memory" if end == "out_of_memory" else "process_lost",
    )
