"""Who an input or an answer comes from: all that an Agent's process needs of the shapes of the API, so that it starts at once [S1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from helmr.protocol.ids import SessionId, TurnId
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSource:
    team_id: str
    channel_id: str
    thread_ts: str
    message_ts: str
    user_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """Where an input came from; `kind` says which members are there."""

    kind: Literal["user", "api_key", "schedule", "session"]
    slack: SlackSource | UnsetType = UNSET
    requester_session_id: SessionId | UnsetType = UNSET
    origin_turn_id: TurnId | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Responder:
    """Who answered a question."""

    kind: str
    id: str
