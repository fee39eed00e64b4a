"""The driver without isolation: ordinary processes of this user, for tests and for systems without namespaces [C2].

A guest can read and do whatever hostd's user can. `probe` and the log say so loudly; it must be asked for by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox.cgroups import Usage
from helmr.host.sandbox.driver import ComputerSpec, Ending, InsidePaths, Probe, Running, ScopeEnded, Unsupported
from helmr.host.sandbox.guestfiles import ensure_runtime
from helmr.host.sandbox.identity import boot_id, descendants, identify, is_alive, parents, state_of
from helmr.host.sandbox.plan import Identity
from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.spawn import LaunchFailed, spawn, when_ended
from helmr.host.sandbox.supervision import supervisor_argv
from helmr.host.sandbox.treescopes import TreeScopes

WARNING: Final = "The process driver isolates nothing: Agents run as this user, on this machine, with its files and its network."
MARK: Final = "HELMR_COMPUTER"
_SOCKET_PATH_LIMIT: Final = 100
_SETTLE_SECONDS: Final = 10.0


class ProcessDriver:
    """Computers as process trees. Files lie in the Computer's folder; limits are not enforced."""

    name = "process"

    def __init__(self, state: Path) -> None:
        self._state = state

    async def probe(self) -> list[Probe]:
        return [
            Probe(name="isolation", works=False, detail=WARNING, remedy="Use the bubblewrap driver for anything but tests."),
            Probe(name="limits", works=False, detail="CPU, memory and process limits are not enforced."),
            Probe(name="freeze", works=True, detail="by SIGSTOP to each process"),
            Probe(name="hibernate", works=False, detail="memory stays in memory"),
        ]

    async def create(self, spec: ComputerSpec, taken: Sequence[ComputerSpec]) -> ComputerSpec:
        folder = Path(spec.folder)
        for name in ("bundles", "disk", "disk/workspace", "disk/home"):
            (folder / name).mkdir(exist_ok=True)
        if not os.path.lexists(folder / "run"):
            # The guest connects by path, and paths of sockets are short.
            if len(str(folder / "run/host.sock")) > _SOCKET_PATH_LIMIT:
                (folder / "run").symlink_to(tempfile.mkdtemp(prefix="helmr-run-"))
            else:
                (folder / "run").mkdir()
        return spec

    def paths(self, spec: ComputerSpec) -> InsidePaths:
        folder = Path(spec.folder)
        return InsidePaths(
            workspace=str(folder / "disk/workspace"),
            python=sys.executable,
            runtime=str(ensure_runtime(self._state / "runtime")),
            bundles=str(folder / "bundles"),
            run=os.path.realpath(folder / "run"),
        )

    async def start(self, spec: ComputerSpec, argv: Sequence[str] | None = None) -> Running:
        folder, inside = Path(spec.folder), self.paths(spec)
        log = str(folder / "supervisor.log")
        supervisor = supervisor_argv(python=inside.python, runtime=inside.runtime, socket=f"{inside.run}/host.sock", log=log)
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder / "disk/home"),
            "LANG": "C.UTF-8",
            **spec.variables,
            MARK: spec.computer,
        }
        try:
            pid = spawn(tuple(argv or supervisor), variables, log=folder / "launch.log")
        except OSError as error:
            raise LaunchFailed(f"The supervisor did not start: {error}") from error
        identity = identify(pid) or Identity(pid=pid)
        return Running(pid1=identity, monitor=identity, boot=boot_id())

    async def ended(self, spec: ComputerSpec, running: Running) -> Ending:
        if is_alive(running.pid1):
            await when_ended(running.pid1.pid)
        try:
            _, status = os.waitpid(running.pid1.pid, os.WNOHANG)
        except ChildProcessError:
            return Ending()  # hostd was restarted meanwhile: it is no child of ours
        code = os.waitstatus_to_exitcode(status)
        return Ending(code=code) if code >= 0 else Ending(signal=-code)

    async def end(self, spec: ComputerSpec, running: Running | None) -> int:
        return await _kill_all(lambda: self._members(spec, running), f"The Computer {spec.computer}")

    async def destroy(self, spec: ComputerSpec) -> None:
        run = Path(spec.folder) / "run"
        if run.is_symlink():
            await asyncio.to_thread(shutil.rmtree, os.path.realpath(run), ignore_errors=True)
        await asyncio.to_thread(remove_tree, Path(spec.folder))

    async def freeze(self, spec: ComputerSpec, running: Running) -> None:
        await self._signal_all(spec, running, signal.SIGSTOP, stopped=True)

    async def thaw(self, spec: ComputerSpec, running: Running) -> None:
        await self._signal_all(spec, running, signal.SIGCONT, stopped=False)

    async def stats(self, spec: ComputerSpec, running: Running) -> Usage:
        return Usage(pids=len(self._members(spec, running)), frozen=state_of(running.pid1.pid) == "T")

    async def create_scope(self, spec: ComputerSpec, running: Running, channel: int) -> None:
        self._tree(spec).create(channel)

    async def join_scope(self, spec: ComputerSpec, running: Running, channel: int, pid: int) -> None:
        if pid not in self._members(spec, running):
            raise LookupError(f"The process {pid} is none of this Computer.")
        self._tree(spec).join(channel, pid)

    async def end_scope(self, spec: ComputerSpec, running: Running, channel: int) -> ScopeEnded:
        ended = await self._tree(spec).end(channel, lambda: self._members(spec, running) - {running.pid1.pid})
        return ScopeEnded(processes=ended, out_of_memory=None)

    async def exec(self, spec: ComputerSpec, running: Running, argv: Sequence[str]) -> int:
        raise Unsupported("Programs run through the supervisor.")

    async def hibernate(self, spec: ComputerSpec, running: Running, image: Path) -> None:
        raise Unsupported("The process driver keeps memory by stopping only.")

    async def wake(self, spec: ComputerSpec, image: Path) -> Running:
        raise Unsupported("The process driver keeps memory by stopping only.")

    async def snapshot(self, spec: ComputerSpec, target: Path) -> None:
        raise Unsupported("The process driver takes no snapshots.")

    async def restore(self, spec: ComputerSpec, source: Path) -> None:
        raise Unsupported("The process driver takes no snapshots.")

    # --- details ---

    def _tree(self, spec: ComputerSpec) -> TreeScopes:
        return TreeScopes(Path(spec.folder) / "scopes")

    def _members(self, spec: ComputerSpec, running: Running | None) -> set[int]:
        """By descent from the supervisor, and by the mark, which is all that is left of orphans and of an unknown run."""
        found: set[int] = set()
        if running is not None and running.boot == boot_id() and is_alive(running.pid1):
            found = {running.pid1.pid} | descendants(running.pid1.pid)
        wanted = f"{MARK}={spec.computer}".encode()
        for pid in parents().keys() - found:
            try:
                marked = wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if marked and identify(pid) is not None:
                found.add(pid)
        return found

    async def _signal_all(self, spec: ComputerSpec, running: Running, number: signal.Signals, *, stopped: bool) -> None:
        pause = 0.001
        async with asyncio.timeout(_SETTLE_SECONDS):
            while left := {pid for pid in self._members(spec, running) if (state_of(pid) == "T") != stopped and identify(pid)}:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.05)


async def _kill_all(members: Callable[[], set[int]], what: str) -> int:
    """Kill until nothing is left, also what forks meanwhile; how many there were."""
    killed: set[int] = set()
    pause = 0.001
    try:
        async with asyncio.timeout(_SETTLE_SECONDS):
            while left := {pid for pid in members() if identify(pid) is not None}:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                killed |= left
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.05)
    except TimeoutError:
        raise LaunchFailed(f"{what} still has processes {_SETTLE_SECONDS:g} s after they were killed.") from None
    return len(killed)
