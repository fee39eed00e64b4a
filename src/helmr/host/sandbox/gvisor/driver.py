"""gVisor behind the port [C2]: sandboxes in a user-space kernel whose memory can go to disk [C6].

Files are as with bubblewrap: the same layers, the same upper folder, the same range of host ids, so that saves and images know no
difference. Needs root. The recipe and its reasons: docs/reference/isolation.md, "gVisor".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox import crowds, handed, interior
from helmr.host.sandbox.bubblewrap import Bubblewrap
from helmr.host.sandbox.builtfiles import BuiltFiles
from helmr.host.sandbox.cgroups import Group, Hierarchies, Usage, find_hierarchies
from helmr.host.sandbox.driver import (
    ComputerSpec,
    Ending,
    ImageMade,
    InsidePaths,
    NotRestored,
    OutOfMemory,
    Passed,
    Probe,
    Running,
    ScopeEnded,
    Unfit,
)
from helmr.host.sandbox.grouping import PARENT
from helmr.host.sandbox.guestfiles import ensure_runtime
from helmr.host.sandbox.gvisor import bundle, image, inside, sealing, staging
from helmr.host.sandbox.gvisor.binary import REMEDY, find_runsc, processor, version
from helmr.host.sandbox.gvisor.plan import GvisorPlan
from helmr.host.sandbox.gvisor.runsc import NAME, Runsc, RunscFailed, is_call
from helmr.host.sandbox.gvisor.start import start
from helmr.host.sandbox.identity import boot_id, descendants, identify, is_alive
from helmr.host.sandbox.plan import Identity
from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.spawn import LaunchFailed, reaped, when_ended
from helmr.host.sandbox.supervision import supervisor_argv
from helmr.protocol.handing import SecretFile

STATES: Final = Path("/run/helmr-gvisor")
"""gVisor's own state of each sandbox: nothing in it outlives a boot, and paths of sockets must be short."""
LOG: Final = "/run/helmr/supervisor.log"
OVERHEAD: Final = 320 << 20
"""Bytes beside the Template's memory: the user-space kernel, the supervisor, and what each process costs it."""
THREADS: Final = 2048
"""Host threads beside four for each process of the Template: too few would end the sandbox."""
KNOCK_SECONDS: Final = 0.02
CLOSING_SECONDS: Final = 5.0


class Gvisor(BuiltFiles):
    """The driver over one state folder; see `Bubblewrap`, which makes its files and builds its images."""

    name = "gvisor"
    guests_connect = False
    proxied = True

    def __init__(self, state: Path, *, hierarchies: Hierarchies | None = None) -> None:
        self._state = state
        self._hierarchies = find_hierarchies() if hierarchies is None else hierarchies
        self.builder = Bubblewrap(state, hierarchies=self._hierarchies)
        self._inside: dict[str, asyncio.Lock] = {}
        """Held while a program of ours runs in a sandbox: one that does can't be checkpointed."""

    async def probe(self) -> list[Probe]:
        from helmr.host.sandbox.gvisor.probes import probe_gvisor

        # What only bubblewrap's Computers lack is told of gVisor's by its own rows.
        shared = [probe for probe in await self.builder.probe() if probe.name not in ("hibernate", "page out", "exec")]
        return [*shared, *await probe_gvisor(self, self._state)]

    async def create(self, spec: ComputerSpec, taken: Sequence[ComputerSpec]) -> ComputerSpec:
        if os.geteuid() != 0:
            raise LaunchFailed("The gvisor driver needs root.")
        return await self.builder.create(spec, taken)

    def paths(self, spec: ComputerSpec) -> InsidePaths:
        return self.builder.paths(spec)

    async def start(self, spec: ComputerSpec, argv: Sequence[str] | None = None, files: Sequence[SecretFile] = ()) -> Running:
        return await self._launch(spec, argv, None, None, files)

    async def channel(self, spec: ComputerSpec, running: Running, what: Passed, seconds: float) -> socket.socket:
        async with asyncio.timeout(seconds), self._lock(spec):
            # It takes a moment until a new pid 1 listens; nothing tells when it does.
            while (stream := await self._try_to_pass(spec, what)) is None:
                if not is_alive(running.pid1):
                    raise LaunchFailed("The Computer has ended.")
                await asyncio.sleep(KNOCK_SECONDS)
        return stream

    async def _try_to_pass(self, spec: ComputerSpec, what: Passed) -> socket.socket | None:
        """Each attempt with a socket of its own: gVisor shuts down one that a process inside has had and did not hand on."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                image.note_passed(self._passed_file(spec), os.fstat(theirs.fileno()).st_ino)
                runsc = self._runsc(spec)
                code = await runsc.execute(inside.send(what), passed=theirs.fileno())
            if code not in (0, inside.NOT_YET, inside.NOT_STARTED):
                raise runsc.failure("exec", code)
        except BaseException:
            ours.close()
            raise
        if code != 0:
            ours.close()
            return None
        ours.setblocking(False)
        return ours

    async def ended(self, spec: ComputerSpec, running: Running) -> Ending:
        if is_alive(running.pid1):
            await when_ended(running.pid1.pid)
        code = reaped(running.pid1.pid)
        killed = self._killed_by_limit(spec)
        if code is None:
            return Ending(out_of_memory=killed)
        # The sandbox ends with the code of its pid 1, 128 and more for a signal; or is killed itself.
        number = -code if code < 0 else code - 128
        ending = Ending(signal=number) if number > 0 else Ending(code=code)
        return Ending(code=ending.code, signal=ending.signal, out_of_memory=killed)

    async def end(self, spec: ComputerSpec, running: Running | None) -> int:
        members = self._members(spec, running)
        group = self._group(spec)
        if group is not None and group.exists:
            ended = await group.end()
            await group.remove()
        else:
            ended = await crowds.kill(lambda: self._members(spec, running))
        for pid in members:
            reaped(pid)
        self._inside.pop(spec.mark, None)
        await asyncio.to_thread(sealing.remove_places, spec)
        await asyncio.to_thread(remove_tree, STATES / spec.mark)
        return ended

    async def destroy(self, spec: ComputerSpec) -> None:
        await asyncio.to_thread(remove_tree, STATES / spec.mark)
        await self.builder.destroy(spec)

    async def sweep(self, kept: Sequence[ComputerSpec]) -> bool:
        return True  # all that it makes is known by the state folder

    async def freeze(self, spec: ComputerSpec, running: Running) -> None:
        group = self._group(spec)
        if group is not None:
            await group.freeze()
        else:
            await self._runsc(spec).pause()

    async def thaw(self, spec: ComputerSpec, running: Running) -> None:
        group = self._group(spec)
        if group is not None:
            await group.thaw()
        else:
            await self._runsc(spec).resume()

    async def page_out(self, spec: ComputerSpec, running: Running) -> int | None:
        return None  # gVisor's processes share what is the guest's, and what is shared stays

    async def stats(self, spec: ComputerSpec, running: Running) -> Usage:
        group = self._group(spec)
        return group.usage() if group is not None else Usage(pids=len(self._members(spec, running)))

    # --- scopes: groups of the guest's own kernel, which their processes enter themselves ---

    async def create_scope(self, spec: ComputerSpec, running: Running, channel: int) -> None:
        """Nothing to do: the keeper of the scope makes its group inside."""

    async def join_scope(self, spec: ComputerSpec, running: Running, channel: int, pid: int) -> None:
        raise LookupError("Processes of this Computer are not the host's.")

    async def end_scope(self, spec: ComputerSpec, running: Running, channel: int) -> ScopeEnded:
        if not is_alive(running.pid1):
            return ScopeEnded(processes=0, out_of_memory=None)
        async with self._lock(spec):
            code = await self._runsc(spec).execute(inside.end_scope(channel))
        if code == 255:
            raise RunscFailed(f"The scope {channel} did not end.")
        return ScopeEnded(processes=code, out_of_memory=None)

    async def exec(self, spec: ComputerSpec, running: Running, argv: Sequence[str]) -> int:
        async with self._lock(spec):
            return await self._runsc(spec).execute(argv)

    # --- memory on disk ---

    async def hibernate(
        self, spec: ComputerSpec, running: Running, folder: Path, key: bytes | None = None, *, careless: bool = False
    ) -> ImageMade:
        """`careless`: deleted files are no reason not to; the probe finds out what becomes of them."""
        from helmr.host.sandbox.gvisor.probes import keeps_deleted_files

        careless = careless or await asyncio.to_thread(keeps_deleted_files, self._state)
        runsc = self._runsc(spec)
        draft = folder.with_name(f".{folder.name}.draft")
        async with self._lock(spec):
            await self._streams_closed(spec, running)
            try:
                await runsc.pause()
                image.check_descriptors(running.pid1.pid, image.passed_inodes(self._passed_file(spec)), careless=careless)
                await asyncio.to_thread(remove_tree, draft)
                await sealing.write(spec, runsc, draft, key, (await self.stats(spec, running)).memory or 0)
                size = await asyncio.to_thread(image.seal, draft, folder)
            except BaseException as error:
                await asyncio.shield(self._go_on(spec, draft))
                if isinstance(error, RunscFailed):
                    raise Unfit(str(error)) from error
                if isinstance(error, OSError):
                    raise Unfit(f"the image could not be kept: {error.strerror or error}") from error
                raise
        return ImageMade(size=size, made_by=self._maker(spec), sealed=key is not None)

    async def settle(self, spec: ComputerSpec, running: Running) -> None:
        await asyncio.to_thread(sealing.remove_places, spec)
        # Whether it is paused can't be asked cheaply; one that runs says so, and nothing changes.
        with contextlib.suppress(RunscFailed):
            await self._runsc(spec).resume()

    async def wake(
        self, spec: ComputerSpec, folder: Path, made_by: str, attempt: Path, key: bytes | None = None, files: Sequence[SecretFile] = ()
    ) -> Running:
        maker = self._maker(spec)
        if made_by != maker:
            raise NotRestored(f"The image was made by {made_by}, and this host has {maker}.")
        if not folder.is_dir():  # noqa: ASYNC240 - a stat
            raise NotRestored("The image is not there any more.")
        try:
            async with sealing.opened(spec, folder, key) as clear:
                return await self._launch(spec, None, clear, attempt, files)
        except LaunchFailed as error:
            raise NotRestored(str(error)) from error

    async def found(self, spec: ComputerSpec) -> Running | None:
        # Who starts or wakes it goes on when hostd is killed, and is done when nothing of its own is left.
        pid_file = STATES / spec.mark / "pid"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while any(is_call(pid) for pid in crowds.marked(spec.mark)):  # noqa: ASYNC110 - processes of a killed hostd give no event
                    await asyncio.sleep(0.02)
        await asyncio.to_thread(sealing.remove_places, spec)
        try:
            pid = int(pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        identity = identify(pid)
        if identity is None or pid not in self._members(spec, None):
            return None
        return self._running(spec, identity)

    # --- details ---

    async def _launch(
        self, spec: ComputerSpec, argv: Sequence[str] | None, folder: Path | None, attempt: Path | None, files: Sequence[SecretFile]
    ) -> Running:
        binary = find_runsc()
        if binary is None:
            raise LaunchFailed(f"There is no runsc. {REMEDY}")
        if spec.first_id is None:
            raise LaunchFailed("The Computer was not made for gVisor: it has no range of ids.")
        base = await self.builder.pinned_base(spec)
        runtime = await asyncio.to_thread(ensure_runtime, self._state / "runtime")
        home = Path(spec.folder)
        python = await self.builder.python(host_base=spec.host_base)
        binds = interior.tools(host_base=spec.host_base, python=python)
        binds += interior.guest(runtime=runtime, bundles=home / "bundles", run=None) + interior.trust(spec)
        paths = self.paths(spec)
        supervisor = supervisor_argv(
            python=paths.python,
            runtime=paths.runtime,
            log=LOG,
            door=inside.DOOR,
            groups=f"{bundle.GROUPS}/pids",
            egress=bool(spec.egress),
            memory=spec.memory,
            pids=spec.pids,
        )
        variables = interior.variables(host_base=spec.host_base, python=python) | interior.told(spec)
        made = bundle.bundle(
            binds=binds,
            argv=argv or supervisor,
            environment=variables,
            hostname=f"c-{spec.computer[-12:]}",
            first_id=spec.first_id,
            secrets=[file.path for file in files],
        )
        await asyncio.to_thread(remove_tree, STATES / spec.mark)
        (STATES / spec.mark).mkdir(parents=True, mode=0o700)
        STATES.chmod(0o700)
        runsc = self._runsc(spec)
        how = ("run",) if folder is None else ("restore", f"--image-path={staging.IMAGE}")
        words = (*how, "--detach", f"--bundle={staging.BUNDLE}", f"--pid-file={STATES / spec.mark / 'pid'}", NAME)
        group = self._group(spec)
        if group is not None:
            group.create()
            group.limit(memory=spec.memory + OVERHEAD, cpu=spec.cpu, pids=4 * spec.pids + THREADS)
        plan = GvisorPlan(
            layers=(*(str(path) for path in base), *spec.lowers),
            upper=str(home / "disk/upper"),
            work=str(home / "disk/work"),
            first_id=spec.first_id,
            binds=tuple(binds),
            places=bundle.places(binds),
            bundle=made,
            runsc=str(binary),
            argv=runsc.argv(*words),
            cgroups=group.entrances if group is not None else (),
            image=None if folder is None else str(folder),
            attempt=None if attempt is None else str(attempt),
            secrets=bool(files),
        )
        if not plan.layers:
            raise LaunchFailed("The image has no layers.")
        try:
            with handed.passed(files) as secrets:
                pid = await start(
                    plan, home / "launch.json", home / "launch.log", STATES / spec.mark / "pid", mark=spec.mark, secrets=secrets
                )
        except BaseException:
            await asyncio.shield(self.end(spec, None))
            raise
        return self._running(spec, identify(pid) or Identity(pid=pid))

    def _running(self, spec: ComputerSpec, identity: Identity) -> Running:
        group = self._group(spec)
        folders = tuple(str(folder) for folder in group.folders) if group is not None else ()
        return Running(pid1=identity, monitor=identity, boot=boot_id(), cgroups=folders)

    async def _streams_closed(self, spec: ComputerSpec, running: Running) -> None:
        """Our ends are closed: wait until the guest has closed its own, which it does when it hears of it."""
        passed = image.passed_inodes(self._passed_file(spec))
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                while is_alive(running.pid1) and image.holds_any(running.pid1.pid, passed):  # noqa: ASYNC110 - another process's descriptors
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise Unfit("a process of the Computer holds a stream of the host") from None

    def _passed_file(self, spec: ComputerSpec) -> Path:
        return STATES / spec.mark / "passed"

    async def _go_on(self, spec: ComputerSpec, draft: Path) -> None:
        await self._runsc(spec).resume()
        await asyncio.to_thread(remove_tree, draft)
        await asyncio.to_thread(sealing.remove_places, spec)

    def _maker(self, spec: ComputerSpec) -> str:
        """What an image is bound to: program, processor, and the files below it that are the host's."""
        binary = find_runsc()
        made = version(binary) if binary is not None else "no runsc"
        return f"runsc {made} on {processor()} with {spec.base or 'its own base'}"

    def _killed_by_limit(self, spec: ComputerSpec) -> OutOfMemory | None:
        group = self._group(spec)
        if group is None or not group.exists or not group.oom_kills():
            return None
        return OutOfMemory(limit=group.memory_limit() or 0, peak=group.usage().memory_peak or 0)

    def _runsc(self, spec: ComputerSpec) -> Runsc:
        binary = find_runsc()
        if binary is None:
            raise LaunchFailed(f"There is no runsc. {REMEDY}")
        return Runsc(binary=binary, root=STATES / spec.mark, log=Path(spec.folder) / "runsc.log", mark=spec.mark)

    def _group(self, spec: ComputerSpec) -> Group | None:
        return Group(self._hierarchies, f"{PARENT}/{spec.mark}") if self._hierarchies.any else None

    def _lock(self, spec: ComputerSpec) -> asyncio.Lock:
        return self._inside.setdefault(spec.mark, asyncio.Lock())

    def _members(self, spec: ComputerSpec, running: Running | None) -> set[int]:
        group = self._group(spec)
        if group is not None and group.exists:
            return group.processes()
        found = crowds.marked(spec.mark)
        if running is not None and is_alive(running.pid1):
            found |= {running.pid1.pid} | descendants(running.pid1.pid)
        return found
