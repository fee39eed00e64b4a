"""API keys as they stand on the wire: what they may and until when, never their token but once. SPEC 14."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from helmr.protocol.ids import ApiKeyId
from helmr.protocol.shapes import Page
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key of one Environment. `ends` are the last characters of its token, by which a person knows it again; empty for those of older
    versions and for configured ones. A key that took another's place (`replaced_by` there) acts as the same principal.

    A key may at most what the person who made it may now: `lacks` is what it was given and that person may no more, and it is `suspended`
    while that person can't come in."""

    id: ApiKeyId
    name: str
    permissions: tuple[str, ...]
    status: Literal["active", "suspended", "expired", "revoked"]
    ends: str
    created_at: str
    created_by: Mapping[str, Any] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    revoked_at: str | UnsetType = UNSET
    replaced_by: ApiKeyId | UnsetType = UNSET
    lacks: tuple[str, ...] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApiKey:
    """A key that was just made. `token` stands in the first answer only: a repetition of the request gets the rest."""

    key: ApiKey
    token: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyPage(Page[ApiKey]):
    items: tuple[ApiKey, ...]
