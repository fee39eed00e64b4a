"""Who may do what to whom among the members. SPEC 14: an admin manages all but owners, an owner everybody."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from helmr.protocol.signin_shapes import Role

MANAGES: Final[Mapping[Role, frozenset[Role]]] = MappingProxyType(
    {
        "viewer": frozenset(),
        "developer": frozenset(),
        "admin": frozenset({"viewer", "developer", "admin"}),
        "owner": frozenset({"viewer", "developer", "admin", "owner"}),
    }
)
"""Whom each role may add, change and remove, and what it may make of them: never more than it is itself."""


def refusal(manager: Role, *roles: Role) -> str | None:
    """Why the manager may not deal with members of these roles, in words; None where it may."""
    if not MANAGES[manager]:
        return "Only admins and owners manage members."
    if not MANAGES[manager] >= set(roles):
        return "Only owners manage owners, and make them."
    return None
