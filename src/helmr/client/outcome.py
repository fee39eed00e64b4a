"""How a Turn ended, as a union that type checkers narrow by `status` and by `payload_expired_at`. SPEC [S10], [S11], [S14], [S22]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from helmr.protocol.content import ContentPart
from helmr.protocol.errors import UnreadableAnswer
from helmr.protocol.shapes import ErrorInfo, TurnState
from helmr.protocol.unset import UNSET

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTurn(Generic[R_co]):
    """The handler returned. A `response` of None is none; an empty one is a response."""

    status: Literal["completed"] = "completed"
    result: R_co
    response: Sequence[ContentPart] | None
    payload_expired_at: None = None
    turn: TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredTurn:
    """The handler returned, and what it returned has been expired since."""

    status: Literal["completed"] = "completed"
    payload_expired_at: str
    turn: TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTurn:
    """The handler, its input or its result failed, or the deadline passed."""

    status: Literal["failed"] = "failed"
    error: ErrorInfo | None
    payload_expired_at: str | None
    turn: TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedTurn:
    """Someone interrupted it, or its process, Computer or worker was lost; `error` says the latter. It is never replayed."""

    status: Literal["interrupted"] = "interrupted"
    error: ErrorInfo | None
    payload_expired_at: str | None
    turn: TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledTurn:
    """It was cancelled, alone or with its Session."""

    status: Literal["cancelled"] = "cancelled"
    payload_expired_at: str | None
    turn: TurnState


TurnOutcome: TypeAlias = CompletedTurn[R] | ExpiredTurn | FailedTurn | InterruptedTurn | CancelledTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettled(Generic[R]):
    """The Turn settled within the time of a timed wait."""

    status: Literal["settled"] = "settled"
    outcome: TurnOutcome[R]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWaitTimeout:
    """The time of a timed wait ran out. The Turn goes on."""

    status: Literal["timeout"] = "timeout"


TimedTurnWaitResult: TypeAlias = TurnSettled[R] | TurnWaitTimeout


async def outcome_of(turn: TurnState, decode: Callable[[Any], Awaitable[R]]) -> TurnOutcome[R] | None:
    """The outcome of a Turn; None while it has none. `decode` reads the persisted result."""
    expired = None if turn.payload_expired_at is UNSET else turn.payload_expired_at
    error = None if turn.error is UNSET else turn.error
    match turn.status:
        case "queued" | "running":
            return None
        case "completed":
            if expired is not None:
                return ExpiredTurn(payload_expired_at=expired, turn=turn)
            if turn.result is UNSET:
                raise UnreadableAnswer("The completed Turn has no result.")
            response = None if turn.response is UNSET else list(turn.response)
            return CompletedTurn(result=await decode(turn.result), response=response, turn=turn)
        case "failed":
            return FailedTurn(error=error, payload_expired_at=expired, turn=turn)
        case "interrupted":
            return InterruptedTurn(error=error, payload_expired_at=expired, turn=turn)
        case "cancelled":
            return CancelledTurn(payload_expired_at=expired, turn=turn)
