"""A Computer's cgroups: what lies where, and what is limited.

`helmr/MARK` is all of it, `helmr/MARK/supervisor` pid 1, `helmr/MARK/scopes/CHANNEL` a Session. The Template's memory and process limits
lie on `scopes`, so that a Session that exhausts them can't take the supervisor with it; the whole has a little more (DESIGN 6).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
from pathlib import Path
from typing import Final

from helmr.host.sandbox.cgroups import Group, Hierarchies, Usage
from helmr.host.sandbox.driver import ComputerSpec, OutOfMemory, ScopeEnded
from helmr.host.sandbox.identity import pid_namespace

PARENT: Final = "helmr"
SUPERVISOR_MEMORY: Final = 256 << 20
SUPERVISOR_PIDS: Final = 64
STEP_PIDS: Final = 4096
OOM_SCORE: Final = "500"
"""`oom_score_adj` of scopes: a host that runs out of memory takes them before anything of its own."""


class StepGroup:
    """The group of one build step: a recipe is a guest's as much as an Agent is, and must not take the host with it."""

    def __init__(self, hierarchies: Hierarchies, mark: str) -> None:
        self._group = Group(hierarchies, f"{PARENT}/{mark}.{secrets.token_hex(4)}")

    def create(self) -> tuple[str, ...]:
        """Make it with its limits; the files that the step's launcher enters by."""
        self._group.create()
        self._group.limit(memory=step_memory(), pids=STEP_PIDS)
        return self._group.entrances

    def out_of_memory(self) -> bool:
        """Whether the limit has killed something of the step."""
        return bool(self._group.oom_kills())

    async def end(self) -> None:
        """Nothing of it is left afterwards. Idempotent."""
        if self._group.exists:
            await self._group.end()
            await self._group.remove()


async def end_steps(hierarchies: Hierarchies, mark: str) -> None:
    """The groups of the steps that a hostd which was killed was building."""
    for name in {folder.name for root in hierarchies.roots() for folder in root.glob(f"{PARENT}/{mark}.*")}:
        group = Group(hierarchies, f"{PARENT}/{name}")
        await group.end()
        await group.remove()


def step_memory() -> int:
    """Bytes that a build step may use: three quarters of the host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4


class ComputerGroups:
    """The groups of one Computer. All calls are idempotent."""

    def __init__(self, hierarchies: Hierarchies, mark: str, *, name: str | None = None) -> None:
        """`name`: the group of all of it where somebody else has made it, who also limits it."""
        self._whole = Group(hierarchies, name or f"{PARENT}/{mark}")
        self._supervisor = self._whole.child("supervisor")
        self._scopes = self._whole.child("scopes")

    def create(self, spec: ComputerSpec) -> tuple[str, ...]:
        """Make them with the Template's limits; the files that pid 1's launcher enters by."""
        self._supervisor.create()
        self._scopes.create()
        self._whole.limit(memory=spec.memory + SUPERVISOR_MEMORY, cpu=spec.cpu, pids=spec.pids + SUPERVISOR_PIDS)
        self._scopes.limit(memory=spec.memory, pids=spec.pids)
        return self._supervisor.entrances

    def take_over(self, spec: ComputerSpec) -> None:
        """Lay our groups out within one that has processes already, and move them to the supervisor's."""
        for folder in self._supervisor.folders:
            folder.mkdir(parents=True, exist_ok=True)
        for pid in self._whole.direct_processes():
            with contextlib.suppress(ProcessLookupError):
                self._supervisor.add(pid)
        # Version 2 gives controllers to groups below one only once that one has no process of its own.
        self._supervisor.create()
        self._scopes.create()
        self._scopes.limit(memory=spec.memory, pids=spec.pids)

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(str(folder) for folder in self._whole.folders)

    def create_scope(self, channel: int) -> None:
        # Never anew what a Computer has left that has just ended: a container's group has that name once.
        self._scopes.child(str(channel)).create_within()

    def join_scope(self, channel: int, pid: int, pid1: int) -> None:
        """Put the Computer's process `pid` into a scope. Raises `LookupError` for an unknown scope, or a process of somebody else.

        The pid comes from the guest's socket, and the guest may let its process end at any moment: the descriptor opened first tells
        whether the number still meant the same process after the move; if not, whoever was moved is moved back.
        """
        group = self._scopes.child(str(channel))
        if not group.exists:
            raise LookupError(f"There is no scope {channel}.")
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise LookupError(f"The process {pid} has ended.") from None
        try:
            if pid_namespace(pid) is None or pid_namespace(pid) != pid_namespace(pid1):
                raise LookupError(f"The process {pid} is none of this Computer.")
            try:
                group.add(pid)
                Path(f"/proc/{pid}/oom_score_adj").write_text(OOM_SCORE)
            except (ProcessLookupError, FileNotFoundError):
                raise LookupError(f"The process {pid} has ended.") from None
            if select.select([descriptor], [], [], 0)[0]:
                self._put_back(pid, pid1)
                raise LookupError(f"The process {pid} has ended.")
        finally:
            os.close(descriptor)

    async def end_scope(self, channel: int) -> ScopeEnded:
        group = self._scopes.child(str(channel))
        if not group.exists:
            return ScopeEnded(processes=0, out_of_memory=None)
        ended = await group.end()
        # Read after the end: the kill by the limit may be what is ending it.
        found: OutOfMemory | None = None
        if group.oom_kills():
            limit, peak = self._scopes.memory_limit() or 0, self._scopes.usage().memory_peak or 0
            found = OutOfMemory(limit=limit, peak=max(peak, group.usage().memory_peak or 0))
        await group.remove()
        return ScopeEnded(processes=ended, out_of_memory=found)

    async def end(self) -> int:
        """Kill all of the Computer, then take its groups away."""
        if not self._whole.exists:
            return 0
        ended = await self._whole.end()
        await self._whole.remove()
        return ended

    async def freeze(self) -> None:
        await self._whole.freeze()

    async def thaw(self) -> None:
        self._swap(may=False)
        await self._whole.thaw()

    def let_swap(self) -> None:
        """Until the next thaw: who runs is to be killed at its limit, not to be swapped."""
        self._swap(may=True)

    def usage(self) -> Usage:
        return self._whole.usage()

    def supervisor_killed(self) -> OutOfMemory | None:
        """Whether the memory limit took pid 1 or a zygote: the limit of the whole."""
        if not self._supervisor.exists or not self._supervisor.oom_kills():
            return None
        return OutOfMemory(limit=self._whole.memory_limit() or 0, peak=self._whole.usage().memory_peak or 0)

    def processes(self) -> set[int]:
        return self._whole.processes()

    def reclaim(self) -> None:
        """Take back at once what is in swap, or can be read again. Blocks a moment."""
        self._whole.reclaim()

    def _swap(self, *, may: bool) -> None:
        for group in (self._whole, self._scopes):
            group.let_swap(may=may)

    def _put_back(self, pid: int, pid1: int) -> None:
        """A number that came to mean another process between look and move: undo the move for a process that isn't the Computer's."""
        if pid_namespace(pid) in (None, pid_namespace(pid1)):
            return
        for root in self._whole.hierarchies.roots():
            (root / "cgroup.procs").write_text(str(pid))
