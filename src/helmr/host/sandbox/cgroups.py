"""Groups of processes, in the cgroup hierarchies of either version, per controller: version 2 where its mount has it, else version 1 [C2].

Two files of a hierarchy that is not there are never an error: `Hierarchies.version` says what is enforced, and probes print it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CONTROLLERS: Final = ("memory", "cpu", "cpuacct", "pids", "freezer")
_PERIOD: Final = 100_000
_SETTLE_SECONDS: Final = 10.0


class CgroupFailed(Exception):
    """The kernel did not do with a group what it was asked, in the time allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a Computer uses. None: this host doesn't count it."""

    memory: int | None = None
    memory_peak: int | None = None
    cpu_seconds: float | None = None
    pids: int | None = None
    oom_kills: int | None = None
    frozen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """The cgroup mounts of this host that we may write to."""

    unified: Path | None = None
    """The version 2 mount. Killing and freezing need no controller there."""
    unified_controllers: frozenset[str] = frozenset()
    legacy: Mapping[str, Path] = field(default_factory=dict[str, Path])

    @property
    def any(self) -> bool:
        """Whether processes can be grouped at all."""
        return self.unified is not None or "freezer" in self.legacy

    def version(self, controller: str) -> int | None:
        """2, 1, or None where it can't be used: then what it would limit is not enforced."""
        if self.unified is not None and (controller in ("freezer",) or controller in self.unified_controllers):
            return 2
        return 1 if controller in self.legacy else None

    def roots(self) -> list[Path]:
        """Each mount once, the one that kills and freezes first."""
        found = [self.unified] if self.unified is not None else [self.legacy["freezer"]] if "freezer" in self.legacy else []
        for controller in CONTROLLERS:
            if self.version(controller) == 1 and self.legacy[controller] not in found:
                found.append(self.legacy[controller])
        return found


def find_hierarchies(mountinfo: str | None = None) -> Hierarchies:
    """Read the mounts once. Those where we can't make a group count as absent (an ordinary user without delegation)."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    unified: Path | None = None
    legacy: dict[str, Path] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        path = Path(words[4])
        if not os.access(path, os.W_OK):
            continue
        if kind[0] == "cgroup2":
            unified = unified or path
        else:
            for option in kind[-1].split(","):
                if option in CONTROLLERS:
                    legacy.setdefault(option, path)
    controllers: frozenset[str] = frozenset()
    if unified is not None:
        controllers = frozenset((unified / "cgroup.controllers").read_text().split())
        if "cpu" in controllers:
            controllers |= {"cpuacct"}
    return Hierarchies(unified=unified, unified_controllers=controllers, legacy=legacy)


@dataclass(frozen=True, slots=True)
class Group:
    """One group by the same name in every hierarchy in use."""

    hierarchies: Hierarchies
    name: str

    def create(self) -> None:
        """Make it, and its parents. A no-op where it is."""
        for root in self.hierarchies.roots():
            path = root
            for word in self.name.split("/"):
                if root == self.hierarchies.unified:
                    self._enable(path)
                path = path / word
                path.mkdir(exist_ok=True)

    def create_within(self) -> None:
        """Make it in a parent that is there. A no-op where there is none: whoever was in it has ended."""
        for root in self.hierarchies.roots():
            path = root / self.name
            with contextlib.suppress(FileNotFoundError):
                if root == self.hierarchies.unified:
                    self._enable(path.parent)
                path.mkdir(exist_ok=True)

    def child(self, name: str) -> Group:
        return Group(self.hierarchies, f"{self.name}/{name}")

    @property
    def exists(self) -> bool:
        return any((root / self.name).is_dir() for root in self.hierarchies.roots())

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(root / self.name for root in self.hierarchies.roots())

    @property
    def entrances(self) -> tuple[str, ...]:
        """The files to which a process writes its pid to enter."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def add(self, pid: int) -> None:
        """Move a process in. `ProcessLookupError` when it is gone."""
        for entrance in self.entrances:
            Path(entrance).write_text(str(pid))

    def processes(self) -> set[int]:
        """The live processes in it and below, as the host numbers them."""
        found: set[int] = set()
        for folder in self.folders[:1]:
            for parent, _, names in os.walk(folder):
                if "cgroup.procs" in names:
                    with contextlib.suppress(FileNotFoundError, OSError):
                        found.update(int(word) for word in Path(parent, "cgroup.procs").read_text().split())
        return found

    def direct_processes(self) -> set[int]:
        """Those in the very group, whichever hierarchy has them."""
        found: set[int] = set()
        for entrance in self.entrances:
            with _unless_gone():
                found.update(int(word) for word in Path(entrance).read_text().split())
        return found

    # --- limits ---

    def limit(self, *, memory: int | None = None, cpu: float | None = None, pids: int | None = None) -> None:
        """Set limits (bytes, cores, processes) where the host can enforce them."""
        if memory is not None:
            self._write("memory", {2: "memory.max", 1: "memory.limit_in_bytes"}, str(memory))
            self.let_swap(may=False)
            # Memory and swap together: a host with swap kills at the limit, too, and what sleeps can still be sent there.
            self._write("memory", {1: "memory.memsw.limit_in_bytes"}, str(memory))
        if cpu is not None:
            quota = max(1000, int(cpu * _PERIOD))
            self._write("cpu", {2: "cpu.max"}, f"{quota} {_PERIOD}")
            self._write("cpu", {1: "cpu.cfs_quota_us"}, str(quota))
        if pids is not None:
            self._write("pids", {2: "pids.max", 1: "pids.max"}, str(pids))

    def let_swap(self, *, may: bool) -> None:
        """Whether its memory may be in swap. What is there stays. Version 1 has no such limit of ours."""
        self._write("memory", {2: "memory.swap.max"}, "max" if may else "0")

    def reclaim(self) -> None:
        """Take back as much of its memory as can be had."""
        used = self._number("memory", {2: "memory.current"})
        try:
            self._write("memory", {2: "memory.reclaim", 1: "memory.force_empty"}, str(used or 0))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EBUSY, errno.EINTR):  # less than all of it
                raise

    def usage(self) -> Usage:
        return Usage(
            memory=self._number("memory", {2: "memory.current", 1: "memory.usage_in_bytes"}),
            memory_peak=self._number("memory", {2: "memory.peak", 1: "memory.max_usage_in_bytes"}),
            cpu_seconds=self._cpu_seconds(),
            pids=self._number("pids", {2: "pids.current", 1: "pids.current"}),
            oom_kills=self.oom_kills(),
            frozen=self.frozen(),
        )

    def oom_kills(self) -> int | None:
        """How many processes of this very group the memory limit has killed; with version 2 those below it too."""
        return self._entry("memory", {2: "memory.events", 1: "memory.oom_control"}, "oom_kill")

    def memory_limit(self) -> int | None:
        return self._number("memory", {2: "memory.max", 1: "memory.limit_in_bytes"})

    # --- freezing and ending ---

    def frozen(self) -> bool:
        if self.hierarchies.version("freezer") == 2:
            return self._entry("freezer", {2: "cgroup.events"}, "frozen") == 1
        text = self._text("freezer", {1: "freezer.state"})
        return text is not None and text.strip() == "FROZEN"

    async def freeze(self) -> None:
        """Stop all of it; returns once nothing of it runs. Raises `CgroupFailed` after 10 s."""
        self._write("freezer", {2: "cgroup.freeze"}, "1")
        self._write("freezer", {1: "freezer.state"}, "FROZEN")
        await self._until(self.frozen, "freeze")

    async def thaw(self) -> None:
        self._write("freezer", {2: "cgroup.freeze"}, "0")
        self._write("freezer", {1: "freezer.state"}, "THAWED")
        await self._until(lambda: not self.frozen(), "thaw")

    async def end(self) -> int:
        """Kill all of it until nothing is left, also what forks meanwhile, also frozen; how many there were at first."""
        first = len(self.processes())

        def gone() -> bool:
            self._kill()
            return not self.processes()

        await self._until(gone, "end")
        return first

    async def remove(self) -> None:
        """Take the empty group and those below it away. A no-op where there is none."""

        def removed() -> bool:
            for folder in self.folders:
                for parent, _, _ in os.walk(folder, topdown=False):
                    try:
                        os.rmdir(parent)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                            raise
            return not self.exists

        await self._until(removed, "remove")

    def _kill(self) -> None:
        folder = self.folders[0]
        if self.hierarchies.unified is not None and (folder / "cgroup.kill").exists():
            with _unless_gone():
                (folder / "cgroup.kill").write_text("1")
            return
        # Version 1: stopped first, so that nothing forks between reading the list and killing what is on it.
        self._write("freezer", {1: "freezer.state"}, "FROZEN")
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._write("freezer", {1: "freezer.state"}, "THAWED")

    async def _until(self, done: object, what: str) -> None:
        assert callable(done)
        pause = 0.0005
        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                while not done():
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.05)
        except TimeoutError:
            raise CgroupFailed(f"The group {self.name} did not {what} within {_SETTLE_SECONDS:g} s.") from None

    # --- files ---

    def _enable(self, path: Path) -> None:
        wanted = [name for name in ("memory", "cpu", "pids") if name in self.hierarchies.unified_controllers]
        if wanted:
            (path / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))

    def _file(self, controller: str, names: Mapping[int, str]) -> Path | None:
        version = self.hierarchies.version(controller)
        if version is None or version not in names:
            return None
        root = self.hierarchies.unified if version == 2 else self.hierarchies.legacy[controller]
        return root / self.name / names[version] if root is not None else None

    def _write(self, controller: str, names: Mapping[int, str], text: str) -> None:
        path = self._file(controller, names)
        if path is not None and path.exists():
            with _unless_gone():
                path.write_text(text)

    def _text(self, controller: str, names: Mapping[int, str]) -> str | None:
        path = self._file(controller, names)
        if path is None:
            return None
        with _unless_gone():
            return path.read_text()
        return None

    def _number(self, controller: str, names: Mapping[int, str]) -> int | None:
        text = self._text(controller, names)
        return int(text) if text is not None and text.strip().isdigit() else None

    def _entry(self, controller: str, names: Mapping[int, str], key: str) -> int | None:
        for line in (self._text(controller, names) or "").splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
        return None

    def _cpu_seconds(self) -> float | None:
        if self.hierarchies.version("cpuacct") == 2:
            used = self._entry("cpuacct", {2: "cpu.stat"}, "usage_usec")
            return None if used is None else used / 1e6
        used = self._number("cpuacct", {1: "cpuacct.usage"})
        return None if used is None else used / 1e9


@contextlib.contextmanager
def _unless_gone() -> Generator[None]:
    """Passes over a group that went meanwhile, as a container's does with its engine: a file of it that was found is no device any more."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
