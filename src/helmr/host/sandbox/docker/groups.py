"""The groups of a container, which the engine's runtime makes, and ours within them [C2], [C3]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox.cgroups import Hierarchies
from helmr.host.sandbox.grouping import PARENT, ComputerGroups

_OURS: Final = ("supervisor", "scopes")
_CONTAINER: Final = re.compile(r"(docker-)?(?P<id>[0-9a-f]{64})(\.scope)?")
"""How the engine names the group of a container, by files or by systemd."""


def groups_of(hierarchies: Hierarchies, mark: str, pid: int, container: str | None = None) -> ComputerGroups | None:
    """Those of the container that a process is in, which is `container` where that is known.

    None for one that has ended, and for one in any other group: what is ended by these groups is all that is in them.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in lines:
        words = line.split(":", 2)[2].strip("/").split("/")
        for number, word in enumerate(words):
            found = _CONTAINER.fullmatch(word)
            inner = words[number + 1 :]
            if found is None or (inner and inner[0] not in _OURS) or (container is not None and found["id"] != container):
                continue
            return ComputerGroups(hierarchies, mark, name="/".join(words[: number + 1])) if hierarchies.any else None
    return None


def groups_named(hierarchies: Hierarchies, mark: str, container: str) -> ComputerGroups | None:
    """Those of a container, there or not, where the engine lets groups lie among ours. None for what is no container's whole id."""
    whole = _CONTAINER.fullmatch(container)
    if whole is None or whole["id"] != container or not hierarchies.any:
        return None
    return ComputerGroups(hierarchies, mark, name=f"{PARENT}/{container}")


def groups_at(hierarchies: Hierarchies, mark: str, folders: Sequence[str]) -> ComputerGroups | None:
    """Those that were noted of a running Computer."""
    for root in hierarchies.roots():
        for folder in folders:
            if Path(folder).is_relative_to(root):
                return ComputerGroups(hierarchies, mark, name=str(Path(folder).relative_to(root)))
    return None
