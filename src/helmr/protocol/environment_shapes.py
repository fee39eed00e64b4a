"""Projects and Environments as they stand on the wire. SPEC 1, 14."""

from __future__ import annotations

from dataclasses import dataclass

from helmr.protocol.ids import DeploymentId
from helmr.protocol.shapes import Page
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What has Environments. Its name is its own in the installation."""

    id: str
    name: str
    environments: tuple[str, ...]
    """Their names."""
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectPage(Page[Project]):
    items: tuple[Project, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an Environment allows. `admission_rate` is how many Sessions and Turns it admits in a second ("20", "0.5", "unlimited"),
    `admission_burst` how many at once; the rest are durations ("30d"), or "never" for what is kept."""

    admission_rate: str
    payload_retention: str
    computer_retention: str
    trigger_computer_retention: str
    trigger_grace: str
    max_init_duration: str
    admission_burst: int | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Requests name it by its `path`, `project/name`."""

    id: str
    path: str
    project: str
    name: str
    created_at: str
    limits: Limits
    current_deployment_id: DeploymentId | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPage(Page[Environment]):
    items: tuple[Environment, ...]
