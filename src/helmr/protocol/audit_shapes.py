"""The audit log as it stands on the wire. SPEC 14."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from helmr.protocol.shapes import Page
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who did it. `name` is that of now; there is none of Sessions, and of what is gone."""

    kind: Literal["api_key", "user", "session"]
    id: str
    name: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One write that was accepted. `target` is the id of what was made or changed; what was said in it is never here."""

    id: str
    at: str
    by: Actor
    operation: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage(Page[AuditEntry]):
    items: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationEntry:
    """What a person did to the installation, or tried: came in, failed to, changed members, projects and Environments.

    There is no `by` where nobody is known to have been it. `about` says of whom or what; `address` from where.
    """

    id: str
    at: str
    what: str
    address: str
    about: str
    by: Actor | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationLogPage(Page[InstallationEntry]):
    items: tuple[InstallationEntry, ...]
