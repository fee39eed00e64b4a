"""The groups of a container, which the engine's runtime makes, and ours within them [C2], [C3]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helmr.host.sandbox.cgroups import Hierarchies
from helmr.host.sandbox.grouping import ComputerGroups

_OURS = ("supervisor", "scopes")


def groups_of(hierarchies: Hierarchies, mark: str, pid: int) -> ComputerGroups | None:
    """Those of the container that a process is in. None where the host has none for us, or the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    paths = {name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")}
    # A host with both versions runs containers by version 1 alone: there its path is the container's.
    path = next((paths[name] for name in ("memory", "pids", "cpu", "freezer", "") if paths.get(name, "/") != "/"), "/")
    words = path.strip("/").split("/")
    while words and words[-1] in _OURS:
        words.pop()
    return ComputerGroups(hierarchies, mark, name="/".join(words)) if hierarchies.any and words[0] else None


def groups_at(hierarchies: Hierarchies, mark: str, folders: Sequence[str]) -> ComputerGroups | None:
    """Those that were noted of a running Computer."""
    for root in hierarchies.roots():
        for folder in folders:
            if Path(folder).is_relative_to(root):
                return ComputerGroups(hierarchies, mark, name=str(Path(folder).relative_to(root)))
    return None
