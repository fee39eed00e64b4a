"""The permissions that there are, and what each role may. SPEC 14."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from helmr.protocol.signin_shapes import Role

PERMISSIONS: Final = (
    "sessions.read",
    "sessions.create",
    "sessions.send",
    "sessions.interrupt",
    "sessions.resume",
    "sessions.close",
    "sessions.cancel",
    "questions.respond",
    "computers.read",
    "computers.write",
    "computers.exec",
    "deployments.read",
    "deployments.write",
    "secrets.read",
    "secrets.write",
    "keys.read",
    "keys.manage",
    "workers.read",
    "workers.manage",
    "audit.read",
)
"""What an API key can be given: all of it is about the key's one Environment."""

OF_PEOPLE: Final = ("members.read", "members.manage", "projects.read", "projects.manage")
"""What only people have: it is about the installation, which is no key's."""

_DEVELOPER: Final = frozenset(
    {
        *(f"sessions.{verb}" for verb in ("create", "send", "interrupt", "resume", "close", "cancel")),
        "computers.write",
        "computers.exec",
        "deployments.write",
    }
)


def _by_role() -> Mapping[Role, frozenset[str]]:
    every = frozenset((*PERMISSIONS, *OF_PEOPLE))
    viewer = frozenset(name for name in every if name.endswith(".read")) | {"questions.respond"}
    developer = viewer | _DEVELOPER
    return MappingProxyType({"viewer": viewer, "developer": developer, "admin": every, "owner": every})


BY_ROLE: Final[Mapping[Role, frozenset[str]]] = _by_role()
"""A viewer may read everything but Secrets' values, which nobody may, and answers questions; each role may what the one before may.

An owner may, beyond an admin, what is about owners (`domain.members`)."""
