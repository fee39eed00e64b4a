"""Processes named so that a pid used again is never taken for the old one."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from helmr.host.sandbox.plan import Identity


@cache
def boot_id() -> str:
    """The id of this boot of the machine; "unknown" where the system has none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown"


def identify(pid: int) -> Identity | None:
    """The identity of a live process; None for one that has ended, zombies included."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, second, may hold spaces and parentheses.
    words = text[text.rindex(")") + 2 :].split()
    return None if words[0] in "ZX" else Identity(pid=pid, started=int(words[19]))


def is_alive(identity: Identity) -> bool:
    return identify(identity.pid) == identity


def pid_namespace(pid: int) -> str | None:
    """What tells the pid namespace of a process; None when it has ended or is none of our business."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def parents() -> dict[int, int]:
    """The parent of each process on this host that can be seen."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[int(name)] = int(text[text.rindex(")") + 2 :].split()[1])
    return found


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, without it."""
    tree = parents()
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {child for child, parent in tree.items() if parent in grown} - found
        found |= grown
    return found


def state_of(pid: int) -> str | None:
    """The scheduler's letter for a process (`R`, `S`, `T`, `Z`, ...); None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2]
