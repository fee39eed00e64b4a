"""Secrets as they stand on the wire: names, versions and times, never a value. SPEC [X1]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helmr.protocol.ids import ComputerId, SecretId
from helmr.protocol.shapes import Page
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVersion:
    """`kept` tells whether its value can still be used by some Computer, or by the next that is started."""

    version: int
    created_at: str
    created_by: Mapping[str, Any]
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretHolder:
    """A Computer that has the Secret now, in this version."""

    computer_id: ComputerId
    residency: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A named value of an Environment; the value itself is never told. `version` is the one that Computers get at their next start."""

    id: SecretId
    name: str
    version: int
    created_at: str
    created_by: Mapping[str, Any]
    rotated_at: str | UnsetType = UNSET
    revoked_at: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretDetails(Secret):
    """With its versions, newest first, the Templates of the current Deployment that bind it, and up to 100 Computers that have it now."""

    versions: tuple[SecretVersion, ...]
    templates: tuple[str, ...]
    computers: tuple[SecretHolder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPage(Page[Secret]):
    items: tuple[Secret, ...]
