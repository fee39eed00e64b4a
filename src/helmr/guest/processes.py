"""Process trees: who descends from a process, and ending all of them. SPEC [C3], [S13].

`/proc` is read, since a process can leave its group and its session, but not its ancestors: a subreaper above it adopts what double-forks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Final

SCOPE_VARIABLE: Final = "HELMR_SCOPE"
"""Environment variable that names the scope of a process, for those whose subreaper was killed."""


def descendants(root: int) -> list[int]:
    """Every process below `root`, children before grandchildren; empty without /proc. Zombies are left out."""
    children: dict[int, list[int]] = {}
    for pid, parent, state in _table():
        if state not in "ZX":
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    level = children.get(root, [])
    while level:
        found += level
        level = [child for pid in level for child in children.get(pid, [])]
    return found


def marked(scope: str) -> list[int]:
    """Every living process that was started with `HELMR_SCOPE` of this value and kept it."""
    wanted = f"{SCOPE_VARIABLE}={scope}".encode()
    return [pid for pid, _, state in _table() if state not in "ZX" and wanted in _environment(pid).split(b"\0")]


def kill(pids: list[int]) -> int:
    """SIGKILL to each; returns how many still were there."""
    ended = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            ended += 1
        except ProcessLookupError:
            continue
    return ended


def threads() -> int:
    """How many threads this process has; 1 without /proc."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def threads_left(seconds: float = 0.25) -> int:
    """The same, once those that have ended are gone: the kernel lists a thread that was joined a moment longer, on a busy host some."""
    ends = time.monotonic() + seconds
    while (count := threads()) > 1 and time.monotonic() < ends:
        time.sleep(0.002)  # nothing tells
    return count


def _table() -> Iterator[tuple[int, int, str]]:
    """(pid, parent, state) of every process that can be seen."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    rest = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            yield int(name), int(rest[1]), rest[0].decode()


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""
