"""The state machine of a Turn, as a table. SPEC [S8], [S10]-[S14], [S18], [S19]; drawn in docs/reference/state-machines.md."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal

from helmr.protocol.states import AbortReason, StopCause, TurnStatus

Cause = Literal[
    "dispatched",
    "completed",
    "failed",
    "drained:turn_interrupted",
    "drained:session_interrupted",
    "drained:deadline",
    "drained:handler_failed",
    "drained:message_handler_failed",
    "process_lost",
    "cancelled",
    "hold_blocked_close",
]
"""Why a Turn's status changes. `drained:X`: the handler stopped, or was stopped by force, under the stop mark X."""

TRANSITIONS: Final = MappingProxyType[tuple[TurnStatus, Cause], TurnStatus](
    {
        ("queued", "dispatched"): "running",
        ("queued", "cancelled"): "cancelled",
        ("queued", "hold_blocked_close"): "cancelled",
        ("running", "completed"): "completed",
        ("running", "failed"): "failed",
        ("running", "drained:turn_interrupted"): "interrupted",
        ("running", "drained:session_interrupted"): "interrupted",
        ("running", "drained:deadline"): "failed",
        ("running", "drained:handler_failed"): "failed",
        ("running", "drained:message_handler_failed"): "failed",
        ("running", "process_lost"): "interrupted",
        ("running", "cancelled"): "cancelled",
    }
)
"""Everything that may happen to a Turn; whatever isn't here can't. A terminal status never changes (I1)."""


DRAINED: Final = MappingProxyType[StopCause, Cause](
    {
        "turn_interrupted": "drained:turn_interrupted",
        "session_interrupted": "drained:session_interrupted",
        "deadline": "drained:deadline",
        "handler_failed": "drained:handler_failed",
        "message_handler_failed": "drained:message_handler_failed",
    }
)


def settled_status(stop_cause: StopCause | None, said: Literal["completed", "failed", "stopped"]) -> TurnStatus:
    """The terminal status of a Turn whose handler drained: the stop mark decides, else what the guest says [S11].

    A guest that says "stopped" without a mark breaks the protocol; its Turn failed.
    """
    if stop_cause is None:
        return TRANSITIONS["running", "completed" if said == "completed" else "failed"]
    return TRANSITIONS["running", DRAINED[stop_cause]]


def lost_status(stop_cause: StopCause | None) -> TurnStatus:
    """The terminal status of a Turn whose process is gone: the mark's, else interrupted [S11], [S14]."""
    if stop_cause is None:
        return TRANSITIONS["running", "process_lost"]
    return TRANSITIONS["running", DRAINED[stop_cause]]


ABORT_REASONS: Final = MappingProxyType[StopCause, AbortReason](
    {
        "turn_interrupted": "turn_interrupted",
        "session_interrupted": "session_interrupted",
        "deadline": "deadline",
        "handler_failed": "failed",
        "message_handler_failed": "failed",
    }
)
"""What the guest's signal says for each stop mark [A6]."""
