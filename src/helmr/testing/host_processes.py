"""What runs in a Computer, seen from its host: for tests that kill, stop or count processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """A process by its pid on the host; `inner` is the pid that it sees itself."""

    pid: int
    inner: int
    started: int
    """In clock ticks since boot: a pid that is used again has another."""
    name: str
    """What it calls itself: `helmr-zygote`, `helmr-keeper`, `helmr-session`, ..."""
    command: str

    def is_alive(self) -> bool:
        """Whether it still runs; a zombie doesn't."""
        found = _stat(self.pid)
        return found is not None and found[2] == self.started and found[1] not in "ZX"


@dataclass(frozen=True, slots=True)
class Tree:
    """A supervisor and all that descends from it."""

    processes: tuple[HostProcess, ...]

    def inner(self, pid: int) -> HostProcess:
        """The one that knows itself as `pid`. Raises `LookupError`."""
        for process in self.processes:
            if process.inner == pid:
                return process
        raise LookupError(f"no process is {pid} inside")

    def named(self, name: str) -> list[HostProcess]:
        """Those that call themselves `name`."""
        return [process for process in self.processes if process.name == name]


def tree_of(root: int) -> Tree:
    """`root` first."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        found = _stat(pid)
        if found is not None and found[1] not in "ZX":
            children.setdefault(found[0], []).append(pid)
    pids, level = [root], children.get(root, [])
    while level:
        pids += level
        level = [child for pid in level for child in children.get(pid, [])]
    return Tree(tuple(process for pid in pids if (process := _process(pid)) is not None))


def naming(texts: Iterable[str]) -> list[str]:
    """Command lines of living processes, other than this one, that name one of `texts` in their arguments or their cgroups."""
    wanted = tuple(texts)
    found: list[str] = []
    for pid in _pids():
        status = _stat(pid)
        if pid == os.getpid() or status is None or status[1] in "ZX":
            continue
        command = _text(pid, "cmdline").replace("\0", " ")
        if any(text in command or text in _text(pid, "cgroup") for text in wanted):
            found.append(f"{pid} {command}")
    return found


def mounts_naming(text: str) -> list[str]:
    """Mounts of this process's namespace that name `text`."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if text in line]


def cgroups_naming(text: str) -> list[str]:
    """cgroups with `text` in their name. Those that come or go meanwhile, as others' do all the time, are passed over."""
    return [os.path.join(folder, name) for folder, names, _ in os.walk("/sys/fs/cgroup") for name in names if text in name]


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def _process(pid: int) -> HostProcess | None:
    found = _stat(pid)
    inner = next((line.split()[-1] for line in _text(pid, "status").splitlines() if line.startswith("NSpid:")), None)
    if found is None or inner is None:
        return None
    return HostProcess(
        pid=pid, inner=int(inner), started=found[2], name=_text(pid, "comm").strip(), command=_text(pid, "cmdline").replace("\0", " ")
    )


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[int, str, int] | None:
    """(parent, state, start time); None when it is gone."""
    rest = _text(pid, "stat").rpartition(")")[2].split()
    return (int(rest[1]), rest[0], int(rest[19])) if rest else None


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
