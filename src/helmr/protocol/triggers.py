"""What the API tells of triggers. Times are RFC 3339 UTC texts with microseconds. SPEC [T3]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from helmr.protocol.ids import DeploymentId, SessionId
from helmr.protocol.shapes import Page
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """What became of one planned instant of a trigger.

    `queued`: it waits for an admission token; `fired`: it has a Session; `missed`: it came too late, or another took its place. `missed`
    counts the instants right before it that were passed over, and itself when it was.
    """

    planned_at: str
    status: Literal["queued", "fired", "missed"]
    missed: int
    recorded_at: str
    fired_at: str | UnsetType = UNSET
    session_id: SessionId | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerInfo:
    """A trigger of the current Deployment. `missed` counts since `active_since`."""

    agent: str
    trigger: str
    deployment_id: DeploymentId
    schedule: str
    timezone: str
    active_since: str
    missed: int
    next_fires: tuple[str, ...]
    """The next five; none where the server lacks the zone."""
    last_firing: Firing | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerPage(Page[TriggerInfo]):
    items: tuple[TriggerInfo, ...]
