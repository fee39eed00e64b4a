"""The driver without isolation: ordinary processes of this user, for tests and for systems without namespaces [C2].

A guest can read and do whatever hostd's user can. `probe` and the log say so loudly; it must be asked for by name.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox import crowds
from helmr.host.sandbox.cgroups import Usage
from helmr.host.sandbox.driver import (
    ASIDE,
    ComputerSpec,
    DurableFiles,
    Ending,
    ImageMade,
    InsidePaths,
    Passed,
    Probe,
    Running,
    ScopeEnded,
    Unsupported,
)
from helmr.host.sandbox.guestfiles import ensure_runtime
from helmr.host.sandbox.identity import boot_id, descendants, identify, is_alive, state_of
from helmr.host.sandbox.paging import page_out
from helmr.host.sandbox.plan import Identity
from helmr.host.sandbox.removal import exchange_tree, remove_tree
from helmr.host.sandbox.spawn import LaunchFailed, reaped, spawn, when_ended
from helmr.host.sandbox.supervision import supervisor_argv
from helmr.host.sandbox.treescopes import TreeScopes
from helmr.protocol.handing import SecretFile

WARNING: Final = "The process driver isolates nothing: Agents run as this user, on this machine, with its files and its network."
_SOCKET_PATH_LIMIT: Final = 100


class ProcessDriver:
    """Computers as process trees. Files lie in the Computer's folder; limits are not enforced."""

    name = "process"
    proxied = False
    guests_connect = True

    def __init__(self, state: Path) -> None:
        self._state = state

    @property
    def builder(self) -> None:
        """It runs on the host's own files."""

    async def probe(self) -> list[Probe]:
        return [
            Probe(name="isolation", works=False, detail=WARNING, remedy="Use the bubblewrap driver for anything but tests."),
            Probe(name="limits", works=False, detail="CPU, memory and process limits are not enforced."),
            Probe(name="egress", works=False, detail="guests have the host's network; what Templates allow is not enforced"),
            Probe(name="freeze", works=True, detail="by SIGSTOP to each process"),
            Probe(name="hibernate", works=False, detail="memory stays in memory"),
        ]

    async def create(self, spec: ComputerSpec, taken: Sequence[ComputerSpec]) -> ComputerSpec:
        folder = Path(spec.folder)
        for name in ("bundles", "disk", "disk/workspace", "disk/home"):
            (folder / name).mkdir(exist_ok=True)
        if not os.path.lexists(folder / "run"):  # noqa: ASYNC240 - a stat or a small file, nothing that blocks
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

    async def start(self, spec: ComputerSpec, argv: Sequence[str] | None = None, files: Sequence[SecretFile] = ()) -> Running:
        if files:
            raise LaunchFailed(f"The process driver has no files of its own for {files[0].path}: bind the Secret as a variable.")
        folder, inside = Path(spec.folder), self.paths(spec)
        log = str(folder / "supervisor.log")
        supervisor = supervisor_argv(python=inside.python, runtime=inside.runtime, socket=f"{inside.run}/host.sock", log=log)
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder / "disk/home"),
            "LANG": "C.UTF-8",
            **spec.variables,
            crowds.MARK: spec.mark,
        }
        try:
            pid = spawn(tuple(argv or supervisor), variables, log=folder / "launch.log")
        except OSError as error:
            raise LaunchFailed(f"The supervisor did not start: {error}") from error
        identity = identify(pid) or Identity(pid=pid)
        return Running(pid1=identity, monitor=identity, boot=boot_id())

    async def channel(self, spec: ComputerSpec, running: Running, what: Passed, seconds: float) -> socket.socket:
        raise Unsupported("Guests connect by themselves.")

    async def ended(self, spec: ComputerSpec, running: Running) -> Ending:
        if is_alive(running.pid1):
            await when_ended(running.pid1.pid)
        code = reaped(running.pid1.pid)
        if code is None:
            return Ending()  # hostd was restarted meanwhile: it is no child of ours
        return Ending(code=code) if code >= 0 else Ending(signal=-code)

    async def end(self, spec: ComputerSpec, running: Running | None) -> int:
        return await crowds.kill(lambda: self._members(spec, running))

    async def destroy(self, spec: ComputerSpec) -> None:
        run = Path(spec.folder) / "run"
        if run.is_symlink():
            await asyncio.to_thread(shutil.rmtree, os.path.realpath(run), ignore_errors=True)  # noqa: ASYNC240 - a stat or a small file, nothing that blocks
        await asyncio.to_thread(remove_tree, Path(spec.folder))

    async def sweep(self, kept: Sequence[ComputerSpec]) -> bool:
        return True  # all that it makes is known by the state folder

    async def freeze(self, spec: ComputerSpec, running: Running) -> None:
        await crowds.stop(lambda: self._members(spec, running))

    async def thaw(self, spec: ComputerSpec, running: Running) -> None:
        await crowds.go_on(lambda: self._members(spec, running))

    async def page_out(self, spec: ComputerSpec, running: Running) -> int | None:
        return await asyncio.to_thread(page_out, self._members(spec, running))

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

    async def hibernate(self, spec: ComputerSpec, running: Running, folder: Path, key: bytes | None = None) -> ImageMade:
        raise Unsupported("The process driver keeps memory by stopping only.")

    async def settle(self, spec: ComputerSpec, running: Running) -> None:
        """There is no hibernation to undo."""

    async def wake(
        self, spec: ComputerSpec, folder: Path, made_by: str, attempt: Path, key: bytes | None = None, files: Sequence[SecretFile] = ()
    ) -> Running:
        raise Unsupported("The process driver keeps memory by stopping only.")

    async def found(self, spec: ComputerSpec) -> Running | None:
        return None

    async def files(self, spec: ComputerSpec) -> DurableFiles:
        return DurableFiles(root=Path(spec.folder) / "disk", first_id=None, layout="process")

    async def prepare_files(self, spec: ComputerSpec) -> Path:
        aside = Path(spec.folder) / ASIDE
        await asyncio.to_thread(remove_tree, aside)
        return aside

    async def place_files(self, spec: ComputerSpec) -> None:
        await asyncio.to_thread(exchange_tree, Path(spec.folder) / ASIDE, Path(spec.folder) / "disk")

    # --- details ---

    def _tree(self, spec: ComputerSpec) -> TreeScopes:
        return TreeScopes(Path(spec.folder) / "scopes")

    def _members(self, spec: ComputerSpec, running: Running | None) -> set[int]:
        """By descent from the supervisor, and by the mark, which is all that is left of orphans and of an unknown run."""
        found: set[int] = set()
        if running is not None and running.boot == boot_id() and is_alive(running.pid1):
            found = {running.pid1.pid} | descendants(running.pid1.pid)
        return found | crowds.marked(spec.mark)
