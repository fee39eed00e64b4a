"""What the API returns: the shapes of the contract, in snake_case. Absent members are `UNSET`.

Times are RFC 3339 UTC texts with microseconds. [S1]-[S24], [E1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from helmr.protocol.content import ContentPart
from helmr.protocol.ids import ComputerId, ControlId, DeploymentId, HoldId, MessageId, QuestionId, SaveId, SessionId, TurnId
from helmr.protocol.questions import Answer, Question
from helmr.protocol.sources import InputSource, Responder
from helmr.protocol.states import (
    CloseReason,
    ComputerStatus,
    EventKind,
    HoldKind,
    QuestionStatus,
    Residency,
    SessionStatus,
    TurnStatus,
)
from helmr.protocol.unset import UNSET, UnsetType

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """Why a Turn did not complete [S14]."""

    code: str
    message: str | UnsetType = UNSET
    details: Mapping[str, Any] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A pause of dispatch. `id` and `session_id` are null for an ancestor that the reader can't read."""

    id: HoldId | None
    session_id: SessionId | None
    kind: HoldKind
    created_at: str
    can_release: bool
    recovery_gap: Mapping[str, Any] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSummary:
    id: TurnId
    status: TurnStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    id: SessionId
    deployment_id: DeploymentId
    root_session_id: SessionId
    agent: str
    template: str
    computer_id: ComputerId | None
    parent_session_id: SessionId | None
    requester_session_id: SessionId | None
    status: SessionStatus
    close_after_idle: str
    idle_since: str | None
    initial_turn: TurnSummary | None
    holds: tuple[Hold, ...]
    labels: Mapping[str, str]
    created_at: str
    key: str | UnsetType = UNSET
    slack_channel_id: str | UnsetType = UNSET
    closed_at: str | UnsetType = UNSET
    close_reason: CloseReason | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnState:
    """A Turn now. `result` of null is a result; an absent one is none [S10]."""

    id: TurnId
    session_id: SessionId
    sequence: int
    status: TurnStatus
    source: InputSource
    created_at: str
    input: Any = UNSET
    started_at: str | UnsetType = UNSET
    terminal_at: str | UnsetType = UNSET
    result: Any = UNSET
    response: Sequence[ContentPart] | UnsetType = UNSET
    error: ErrorInfo | UnsetType = UNSET
    payload_expired_at: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReceipt:
    """Confirms admission of a Turn, not its completion."""

    id: TurnId
    session_id: SessionId
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReceipt:
    id: SessionId
    deployment_id: DeploymentId
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCreateReceipt:
    session: SessionReceipt
    turn: TurnReceipt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceipt:
    id: MessageId
    status: Literal["accepted"] = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInterruptReceipt:
    id: ControlId
    session_id: SessionId
    turn_id: TurnId
    status: Literal["accepted"] = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInterruptReceipt:
    id: ControlId
    session_id: SessionId
    hold_id: HoldId
    status: Literal["accepted"] = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResumeReceipt:
    id: ControlId
    session_id: SessionId
    hold_id: HoldId
    status: Literal["accepted"] = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatusReceipt:
    """What close and cancel return: the Session's status after the request."""

    session_id: SessionId
    status: SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDataReceipt:
    """What was said in the Session is gone, or going, since then [S22]."""

    session_id: SessionId
    payload_expired_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record of a Session's timeline [E1]."""

    session_id: SessionId
    turn_id: TurnId | None
    sequence: int
    created_at: str
    kind: EventKind
    data: Mapping[str, Any] | Sequence[ContentPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    records: tuple[Event, ...]
    next_after: int
    has_more: bool
    retained_after: int
    sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page of a listing, and where the next one begins."""

    items: tuple[T, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage(Page[Session]):
    items: tuple[Session, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPage(Page[TurnState]):
    items: tuple[TurnState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionState:
    """A question now [Q5]. `question` has `prompt` and `answer`, as it was asked; `reason` says why it was cancelled.

    What was asked and answered may be gone: then `payload_expired_at` says since when.
    """

    id: QuestionId
    session_id: SessionId
    turn_id: TurnId
    status: QuestionStatus
    created_at: str
    question: Question | UnsetType = UNSET
    answer: Answer | UnsetType = UNSET
    responded_by: Responder | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    settled_at: str | UnsetType = UNSET
    payload_expired_at: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPage(Page[QuestionState]):
    items: tuple[QuestionState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionReceipt:
    """The recorded answer's receipt [Q3]: the same for the same `response_id` and answer."""

    id: QuestionId
    session_id: SessionId
    turn_id: TurnId
    status: Literal["responded"]
    response_id: str
    responded_by: Responder
    responded_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Computer:
    """A Computer now [C1]. `cpu` in cores, `memory` in bytes.

    `explicit`: made by hand, and deleted only so. Else `delete_after` says when it goes, once its last Session has closed [C9].
    """

    id: ComputerId
    deployment_id: DeploymentId
    template: str
    status: ComputerStatus
    residency: Residency
    explicit: bool
    cpu: float
    memory: int
    open_sessions: int
    created_at: str
    key: str | UnsetType = UNSET
    slept_at: str | UnsetType = UNSET
    delete_after: str | UnsetType = UNSET
    saved_at: str | UnsetType = UNSET
    """Of when its newest complete save is."""
    save_id: SaveId | UnsetType = UNSET
    deleted_at: str | UnsetType = UNSET
    error: ErrorInfo | UnsetType = UNSET
    """Why it could not be started, or not be destroyed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerPage(Page[Computer]):
    items: tuple[Computer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerCreateReceipt:
    """A Computer was made; it is cold until somebody needs it."""

    id: ComputerId
    deployment_id: DeploymentId
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerReceipt:
    """What hibernate, wake and delete return: where the Computer is or goes, after the request."""

    computer_id: ComputerId
    status: ComputerStatus
    residency: Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """A published Agent: its input contract and its resolved Runtime MCP policy."""

    agent: str
    template: str
    deployment_id: DeploymentId
    input_kind: Literal["text", "json"]
    runtime_mcp: Mapping[str, Any]
    input_schema: Mapping[str, Any] | UnsetType = UNSET
    """{"status": "available", "schema": ...} or {"status": "unavailable", "reason": ...}; for JSON input only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPage:
    deployment_id: DeploymentId
    items: tuple[AgentInfo, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a Session does what it does now: one sentence, and the facts behind it [S23]."""

    session_id: SessionId
    state: str
    sentence: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`images`: the digest that each image reference was resolved to [A7]. `collected_at`: since then its files may be gone [D3]."""

    id: DeploymentId
    status: Literal["building", "deployed", "failed"]
    current: bool
    digest: str
    created_at: str
    agents: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    error: ErrorInfo | UnsetType = UNSET
    collected_at: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Names, sorted. Of each kind at most 1000 are listed; `left_out` counts the others."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentDiff:
    """What a Deployment has otherwise than the one of `since`: Agents, their policies, triggers as `agent/trigger`, Templates, and files
    of the source, which are absent when those of either were collected [D3]."""

    deployment_id: DeploymentId
    since: DeploymentId
    agents: Changes
    policies: Changes
    triggers: Changes
    templates: Changes
    files: Changes | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What this installation can do."""

    version: str
    api: str
    features: tuple[str, ...]
    limits: Mapping[str, int]
