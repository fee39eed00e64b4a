"""What each role may. SPEC 14."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_DEVELOPER: Final = frozenset(
    {
        *(f"sessions.{verb}" for verb in ("create", "send", "interrupt", "resume", "close", "cancel")),
        "computers.write",
        "computers.exec",
        "deployments.write",
    }
)
_ADMIN: Final = frozenset({f"{noun}.manage" for noun in ("keys", "members", "projects", "workers", "webhooks")} | {"secrets.write"})


def permissions_by_role(known: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """The permissions among those that are known: a viewer has every one to read, and answers questions; each role has those before it."""
    viewer = {name for name in known if name.endswith(".read")} | {"questions.respond"}
    developer = viewer | _DEVELOPER
    admin = developer | _ADMIN
    return MappingProxyType(
        {
            role: frozenset(found & set(known))
            for role, found in {"viewer": viewer, "developer": developer, "admin": admin, "owner": admin}.items()
        }
    )
