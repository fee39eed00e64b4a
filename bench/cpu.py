"""CPU time by part, from the scheduler's own count in nanoseconds, which sampling noise can't blur."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bench.installation import Installation


def cpu_ns(installation: Installation) -> Counter[str]:
    """Nanoseconds on the CPU so far, summed over the living threads of each part of this installation."""
    commands, parents = _processes()
    roots = {pid: name for pid, name in _roots(installation, commands).items() if pid in commands}
    found: Counter[str] = Counter()
    for pid in commands:
        ancestor = pid
        while ancestor not in roots and ancestor in parents:
            ancestor = parents[ancestor]
        part = roots.get(ancestor)
        if part is None:
            continue
        if part == "hostd" and "helmr.guest" in commands[pid]:
            part = "supervisors" if "helmr.guest.supervisor" in commands[pid] else "sessions"
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                found[part] += int((thread / "schedstat").read_text().split()[0])
        except (OSError, ValueError):
            continue
    return found


def _roots(installation: Installation, commands: dict[int, str]) -> dict[int, str]:
    """The processes from which each part descends."""
    roots = {pid: "postgres" for pid, command in commands.items() if f"-D {installation.folder}" in command}
    roots |= {pid: "hostd" for pid, command in commands.items() if "helmr.host.hostd" in command and str(installation.folder) in command}
    for process, part in ((installation.server, "front"), (installation.worker, "relay")):
        if process is not None:
            roots[process.pid] = part
    return roots


def _processes() -> tuple[dict[int, str], dict[int, int]]:
    """Command line and parent of every process."""
    commands: dict[int, str] = {}
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parents[int(process.name)] = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        commands[int(process.name)] = command
    return commands, parents


def pss_kib(pid: int) -> int:
    """Proportional memory of one process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
