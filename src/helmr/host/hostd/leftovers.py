"""What bears this host daemon's marks and is on none of its records: left by one that was killed, or by an attempt that failed half-way.

Found again and again, and ended: processes, cgroups, gVisor's own state, folders, and copies of a Python, or of the guest's side of Helmr,
that no Computer uses any more. A mark names the Computer and the state folder that it belongs to, so nothing of another daemon is ever
touched; and since nobody can make a Computer meanwhile, nothing that is just being made is. SPEC [C9], UD-42.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from helmr.host.hostd.params import NAME
from helmr.host.hostd.records import Record
from helmr.host.sandbox import crowds
from helmr.host.sandbox.cgroups import CgroupFailed, Group, find_hierarchies
from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.grouping import PARENT
from helmr.host.sandbox.gvisor.driver import STATES
from helmr.host.sandbox.removal import remove_tree

if TYPE_CHECKING:
    from helmr.host.hostd.daemon import Hostd

LOOK_SECONDS: Final = 60.0
UNFINISHED_SECONDS: Final = 3600.0
"""A copy that is not whole after this long never will be."""
_GONE: Final = ".gone-"

_log = structlog.get_logger("helmr.hostd.leftovers")


@dataclass(slots=True)
class Ended:
    """What one look has ended."""

    computers: list[str] = field(default_factory=list[str])
    processes: int = 0
    copies: list[str] = field(default_factory=list[str])
    """Of a Python, and of the guest's side of Helmr."""


class Leftovers:
    def __init__(self, hostd: Hostd) -> None:
        self._hostd = hostd

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.end()

    async def end(self) -> Ended:
        """End all that there is now. What does not go is told in the log, and tried again by the next look."""
        ended = Ended()
        async with self._hostd.creating:
            for name in await asyncio.to_thread(self._names):
                try:
                    ended.processes += await self._end_computer(name)
                except (OSError, crowds.CrowdFailed, CgroupFailed) as error:
                    _log.error("leftover.stays", computer=name, error=str(error))
                else:
                    ended.computers.append(name)
            records = [computer.record for computer in self._hostd.computers.values()]
            for place in ("python", "runtime"):
                ended.copies += await asyncio.to_thread(_remove_copies, self._hostd.config.state / place, records)
        return ended

    async def _end_computer(self, name: str) -> int:
        driver, spec = self._hostd.driver, self._spec(name)
        processes = await driver.end(spec, None)
        group = Group(find_hierarchies(), f"{PARENT}/{spec.mark}")  # of whichever driver this folder had before
        if group.exists:
            processes += await group.end()
            await group.remove()
        processes += await crowds.kill(lambda: crowds.marked(spec.mark))
        await asyncio.to_thread(remove_tree, STATES / spec.mark)
        if name in self._hostd.damaged:
            _log.warning("computer.leftover", computer=name, processes=processes, files="kept")
            return processes
        await driver.destroy(spec)
        _log.warning("computer.leftover", computer=name, processes=processes)
        return processes

    def _names(self) -> list[str]:
        """Computers of this state folder of which there is something, and no record."""
        known = self._hostd.computers
        # A guest may bear any mark; a name that is none would lead out of the folder.
        found = {name for mark in _marks() if NAME.fullmatch(name := mark.rpartition(".")[0]) and self._spec(name).mark == mark}
        for path in self._folder.iterdir():
            name = path.name.removeprefix(_GONE)
            if NAME.fullmatch(name) and name not in self._hostd.damaged:
                found.add(name)
        return sorted(name for name in found if name not in known)

    def _spec(self, name: str) -> ComputerSpec:
        return ComputerSpec(computer=name, environment="", folder=str(self._folder / name), host_base=True)

    @property
    def _folder(self) -> Path:
        return self._hostd.config.state / "computers"


def _marks() -> Iterator[str]:
    """Of everything on this host that bears one."""
    yield from crowds.marks()
    for root in find_hierarchies().roots():
        if (root / PARENT).is_dir():
            yield from (path.name for path in (root / PARENT).iterdir() if path.is_dir())
    if os.access(STATES, os.R_OK | os.X_OK):
        yield from (path.name for path in STATES.iterdir())


def _remove_copies(folder: Path, records: Collection[Record]) -> list[str]:
    """All in a folder of copies but the one that was asked for last, and those which a Computer that runs or sleeps was started with."""
    copies = sorted((path for path in folder.iterdir() if path.is_dir()), key=_asked) if folder.is_dir() else []
    whole = [path for path in copies if not path.name.startswith(".")]
    torn = [path for path in copies if path.name.startswith(".") and time.time() - _asked(path) > UNFINISHED_SECONDS]
    plans = [_plan(record) for record in records if record.state != "stopped"]
    removed: list[str] = []
    for path in (*torn, *whole[:-1]):
        if not any(plan is None or os.fsencode(path) in plan for plan in plans):
            remove_tree(path)
            removed.append(path.name)
    return removed


def _asked(path: Path) -> float:
    """When it was asked for last."""
    return path.stat().st_mtime


def _plan(record: Record) -> bytes | None:
    """How it was started: in whatever form, a path in it is a path. None when nothing tells: it may need anything."""
    places = [Path(record.spec.folder) / "launch.json"]
    if record.running is not None:
        places.append(Path(f"/proc/{record.running.pid1.pid}/cmdline"))
    found: list[bytes] = []
    for place in places:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(place.read_bytes())
    return b"\0".join(found) if any(found) else None
