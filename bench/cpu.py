"""CPU time by part, from the scheduler's own count in nanoseconds, which sampling noise can't blur."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bench.installation import Installation


def cpu_ns(installation: Installation) -> Counter[str]:
    """Nanoseconds on the CPU so far, summed over the living threads of each part."""
    known = {}
    if installation.server is not None:
        known[installation.server.pid] = "front"
    if installation.worker is not None:
        known[installation.worker.pid] = "relay"
    found: Counter[str] = Counter()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        part = known.get(int(process.name)) or _part(process, installation)
        if part is None:
            continue
        try:
            for thread in (process / "task").iterdir():
                found[part] += int((thread / "schedstat").read_text().split()[0])
        except (OSError, ValueError):
            continue
    return found


def _part(process: Path, installation: Installation) -> str | None:
    try:
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return None
    if command.startswith("postgres:") or str(installation.folder / "postgres") in command:
        owner = command
        if command.startswith("postgres:"):
            try:
                owner = Path(f"/proc/{parent}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                return None
        return "postgres" if str(installation.folder) in owner else None
    if "helmr.guest.supervisor" in command:
        return "supervisors"
    if "helmr.guest" in command:
        return "sessions"
    if "helmr.host.hostd" in command and str(installation.folder) in command:
        return "hostd"
    return None


def pss_kib(pid: int) -> int:
    """Proportional memory of one process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
