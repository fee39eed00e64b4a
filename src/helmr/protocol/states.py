"""The vocabulary of states and causes, as they stand on the wire and in the database."""

from __future__ import annotations

from typing import Final, Literal

SessionStatus = Literal["open", "closing", "closed"]
TurnStatus = Literal["queued", "running", "completed", "failed", "interrupted", "cancelled"]
TERMINAL: Final[frozenset[str]] = frozenset({"completed", "failed", "interrupted", "cancelled"})

HoldKind = Literal["interrupt", "process_failed", "recovery_gap", "storage_pressure"]
CloseReason = Literal["close", "cancel", "idle"]

StopCause = Literal["turn_interrupted", "session_interrupted", "deadline", "handler_failed", "message_handler_failed"]
"""What a stop mark names [S11]."""

AbortReason = Literal["turn_interrupted", "session_interrupted", "cancelled", "deadline", "shutdown", "failed"]
"""What `signal.reason` says in the guest [A6]."""

ProcessState = Literal["none", "starting", "ready", "asleep", "ending"]
"""A Session's process: none; started but in `init`; past `init`; standing still with its Computer; told to end [S9], [C6]."""

LossReason = Literal["process_lost", "out_of_memory", "cleanup_failed", "worker_lost", "history_lost", "init_failed", "init_timeout"]
RecoveryKind = Literal["initial", "reconstructed"]
RecoveryReason = Literal["process_lost", "out_of_memory", "cleanup_failed", "worker_lost", "memory_not_restored", "restored_from_save"]

ComputerStatus = Literal["available", "deleting", "deleted"]
Residency = Literal["cold", "starting", "running", "hibernating", "hibernated", "waking", "restoring", "unavailable"]

CommandStatus = Literal["queued", "starting", "running", "exited", "cancelled", "timed_out", "system_failed"]
"""A Command waits for its Computer; was handed to it; runs there; and how it ended [C8]."""
COMMAND_ENDED: Final[frozenset[str]] = frozenset({"exited", "cancelled", "timed_out", "system_failed"})
CommandStream = Literal["stdout", "stderr"]
SaveCause = Literal["turn", "hibernate", "drain", "request"]
SaveState = Literal["taking", "complete", "failed", "deleted"]
"""A save of a Computer's files; deleted: a newer one took its place, or its Computer is deleted [C5]."""

DeploymentStatus = Literal["building", "deployed", "failed"]

MessageStatus = Literal["admitted", "started", "delivered", "rejected"]
QuestionStatus = Literal["pending", "responded", "cancelled"]

QuestionReason = Literal["withdrawn", "turn_stopping", "session_closing", "turn_terminated"]
"""Why a question was cancelled: taken back, a stop mark, a close, the end of its Turn. [Q4], [S11], [S18]."""

EventKind = Literal[
    "turn.queued",
    "turn.running",
    "turn.stopping",
    "turn.output",
    "turn.completed",
    "turn.failed",
    "turn.interrupted",
    "turn.cancelled",
    "message.admitted",
    "message.started",
    "message.delivered",
    "message.rejected",
    "question.asked",
    "question.responded",
    "question.cancelled",
    "session.interrupt",
    "session.resume",
    "session.close",
    "session.cancel",
    "session.held",
    "session.closed",
    "session.process_started",
    "session.process_stopped",
    "session.process_failed",
    "computer.assigned",
    "computer.hibernated",
    "computer.woken",
    "computer.restored",
    "slack.delivery_unavailable",
]
