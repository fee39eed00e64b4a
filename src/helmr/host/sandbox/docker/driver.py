"""Docker behind the port [C2]: Computers as containers of an engine on this host.

Files are as with bubblewrap: the same layers, the same upper folder, so that saves and images know no difference; `grafting.py` says how.
Needs root. Its processes are known by their pids here, so that Computers are watched, frozen and ended also while the engine is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.host.sandbox import crowds, handed, interior
from helmr.host.sandbox.bubblewrap import GUEST_LOG, Bubblewrap
from helmr.host.sandbox.builtfiles import BuiltFiles
from helmr.host.sandbox.cgroups import Hierarchies, Usage, find_hierarchies
from helmr.host.sandbox.docker import container, grafting
from helmr.host.sandbox.docker.engine import Engine, EngineFacts, EngineFailed, find_socket
from helmr.host.sandbox.docker.groups import groups_at, groups_named, groups_of
from helmr.host.sandbox.docker.shown import hide, shown
from helmr.host.sandbox.driver import (
    ComputerSpec,
    Ending,
    ImageMade,
    InsidePaths,
    OutOfMemory,
    Passed,
    Probe,
    Running,
    ScopeEnded,
    Unsupported,
)
from helmr.host.sandbox.grouping import SUPERVISOR_MEMORY, ComputerGroups
from helmr.host.sandbox.guestfiles import ensure_runtime
from helmr.host.sandbox.identity import boot_id, identify, is_alive
from helmr.host.sandbox.paging import page_out
from helmr.host.sandbox.plan import Bind
from helmr.host.sandbox.spawn import LaunchFailed, when_ended
from helmr.host.sandbox.supervision import supervisor_argv
from helmr.protocol.handing import SecretFile

ENDING_SECONDS: Final = 5.0
"""How long the engine may take to tell how a container ended whose pid 1 is gone."""
EXEC_SECONDS: Final = 60.0
IMPORTS: Final = 5
"""How often the image is made anew before a start gives up: others on the same engine may be cleaning up."""

_CONTAINER_NOTE: Final = "container"
"""In a Computer's folder: the id of its last container."""
_ENGINE_NOTE: Final = "docker/engine"
_SHOWN: Final = "docker/shown"

_log = structlog.get_logger("helmr.docker")


class Docker(BuiltFiles):
    """The driver over one state folder; see `Bubblewrap`, which makes its files and builds its images."""

    name = "docker"
    proxied = True
    guests_connect = True

    def __init__(self, state: Path, *, hierarchies: Hierarchies | None = None, engine: Path | None = None) -> None:
        self._state = state
        self._hierarchies = find_hierarchies() if hierarchies is None else hierarchies
        self.builder = Bubblewrap(state, hierarchies=self._hierarchies)
        self.engine = Engine(find_socket() if engine is None else engine)
        self._known: EngineFacts | None = None
        self._tried: set[str] = set()
        self._handed = f"helmr-secrets-{container.state_mark(state)}"
        self._tidied = False

    async def probe(self) -> list[Probe]:
        from helmr.host.sandbox.docker.probes import probe_docker

        # What only bubblewrap's Computers lack is told of Docker's by its own rows.
        shared = [probe for probe in await self.builder.probe() if probe.name != "exec"]
        return [*shared, *await probe_docker(self, self._state)]

    async def create(self, spec: ComputerSpec, taken: Sequence[ComputerSpec]) -> ComputerSpec:
        if os.geteuid() != 0:
            raise LaunchFailed("The docker driver needs root.")
        base = await self.builder.base_layers(host_base=spec.host_base)
        first_id = (await self._facts()).first_id
        assert first_id is not None
        folder = Path(spec.folder)
        for name in ("run", "bundles", "disk", "disk/upper", "disk/work"):
            (folder / name).mkdir(exist_ok=True)
        # Programs of root's below it would be root's on this host too.
        (folder / "disk").chmod(0o700)
        os.chown(folder / "disk/upper", first_id, first_id)
        # Layers are shown to an engine with ids of its own for as long as the host runs: one of a Computer's own would stay behind.
        own = spec.own_bundle and not first_id
        return dataclasses.replace(spec, base=base[0].name if base else "", first_id=first_id, own_bundle=own)

    def paths(self, spec: ComputerSpec) -> InsidePaths:
        return self.builder.paths(spec)

    async def start(self, spec: ComputerSpec, argv: Sequence[str] | None = None, files: Sequence[SecretFile] = ()) -> Running:
        first_id = (await self._facts()).first_id
        if first_id is None or spec.first_id != first_id:
            raise LaunchFailed("The Computer was not made for this Docker engine: its files belong to other ids of this host.")
        base = await self.builder.pinned_base(spec)
        layers = (*(str(path) for path in base), *spec.lowers)
        if not layers:
            raise LaunchFailed("The image has no layers.")
        if first_id:
            layers = tuple(await shown(layers, first_id, self._state / _SHOWN))
        with handed.laid(files, self._handed, first_id) as shown_files:
            return await self._start(spec, layers, await self._configuration(spec, argv, shown_files))

    async def _start(self, spec: ComputerSpec, layers: Sequence[str], config: dict[str, Any]) -> Running:
        folder = Path(spec.folder)
        # It names what of the state folder the container shows, for whoever removes what nobody uses.
        await asyncio.to_thread((folder / "launch.json").write_text, json.dumps(config))
        await asyncio.to_thread(grafting.check_readable, folder / "disk/upper")
        name = container.container_name(spec)
        await self.engine.remove(name)
        groups: ComputerGroups | None = None
        try:
            made = await self._made(name, config)
            (folder / _CONTAINER_NOTE).write_text(made)
            found = await self.engine.inspect(made)
            await asyncio.to_thread(grafting.graft, _changes(found), layers, folder / "disk")
            await self.engine.start(made)
            found = await self.engine.inspect(made)
            identity = identify(int(found["State"]["Pid"])) if found is not None else None
            if found is None or identity is None:
                raise LaunchFailed(f"The container ended as soon as it was started: {(found or {}).get('State')}")
            groups = groups_of(self._hierarchies, spec.mark, identity.pid, made)
            if groups is None and self._hierarchies.any:
                # Ended meanwhile, or put where nobody would look: either way it is not to run unwatched.
                raise LaunchFailed(f"The process {identity.pid} is in no group of the container {made}.")
            if groups is not None:
                groups.take_over(spec)
        except BaseException:
            await asyncio.shield(self._give_up(spec, groups))
            raise
        return Running(pid1=identity, monitor=identity, boot=boot_id(), cgroups=tuple(groups.folders) if groups is not None else ())

    async def channel(self, spec: ComputerSpec, running: Running, what: Passed, seconds: float) -> socket.socket:
        raise Unsupported("Guests connect by themselves.")

    async def ended(self, spec: ComputerSpec, running: Running) -> Ending:
        if is_alive(running.pid1):
            await when_ended(running.pid1.pid)
        name = container.container_name(spec)
        try:
            code = await self.engine.wait(name, ENDING_SECONDS)
            found = await self.engine.inspect(name)
        except EngineFailed as error:
            _log.warning("docker.ending_unknown", computer=spec.computer, reason=str(error))
            return Ending()  # the engine is away, and nobody else saw how
        if code is None or found is None:
            return Ending()
        killed = OutOfMemory(limit=spec.memory + SUPERVISOR_MEMORY, peak=spec.memory + SUPERVISOR_MEMORY)
        ending = Ending(signal=code - 128) if code > 128 else Ending(code=code)
        return dataclasses.replace(ending, out_of_memory=killed if found["State"].get("OOMKilled") and ending.signal else None)

    async def end(self, spec: ComputerSpec, running: Running | None) -> int:
        name = container.container_name(spec)
        pids = crowds.marked(spec.mark)
        groups = groups_at(self._hierarchies, spec.mark, running.cgroups) if running is not None and running.boot == boot_id() else None
        for pid in sorted(pids) if groups is None else ():
            groups = groups or groups_of(self._hierarchies, spec.mark, pid)
        groups = groups or self._noted_groups(spec)
        ended = await groups.end() if groups is not None else 0
        # Without groups of ours pid 1, which bears the mark, takes all of its process table with it.
        ended += await crowds.kill(lambda: crowds.marked(spec.mark))
        try:
            await self.engine.remove(name)
        except EngineFailed as error:
            if error.status is not None:
                raise
            # Nothing of it runs; what the engine remembers goes with the next start, or the next sweep.
            _log.warning("docker.not_removed", computer=spec.computer, reason=str(error))
        if groups is not None:
            await groups.end()  # the engine's runtime may have taken its own away while ours were being made
        return ended

    async def destroy(self, spec: ComputerSpec) -> None:
        await self.builder.destroy(spec)

    async def sweep(self, kept: Sequence[ComputerSpec]) -> bool:
        marks = {spec.mark for spec in kept} | self._tried
        if not self._tidied:  # before the first start of this hostd
            await asyncio.to_thread(handed.forget, self._handed)
            self._tidied = True
        try:
            for entry in await self.engine.labelled(f"{container.STATE_LABEL}={container.state_mark(self._state)}"):
                if entry["Labels"].get(container.COMPUTER_LABEL) not in marks:
                    _log.warning("docker.leftover", container=entry["Id"], names=entry["Names"])
                    await self.engine.remove(entry["Id"])
        except EngineFailed as error:
            _log.warning("docker.not_swept", reason=str(error))
            return False
        return True

    @contextlib.contextmanager
    def trying(self, spec: ComputerSpec) -> Generator[None]:
        """While a probe has a Computer of its own, which no sweep takes away."""
        self._tried.add(spec.mark)
        try:
            yield
        finally:
            self._tried.discard(spec.mark)

    async def leave(self) -> None:
        """Take all that is of this state folder out of the engine. The image stays while another folder's containers stand on it."""
        await hide(self._state / _SHOWN)
        if await self.sweep(()):
            await self.engine.remove_image(f"{container.IMAGE}:{container.TAG}")

    async def freeze(self, spec: ComputerSpec, running: Running) -> None:
        await self._groups(spec, running).freeze()

    async def thaw(self, spec: ComputerSpec, running: Running) -> None:
        await self._groups(spec, running).thaw()

    async def page_out(self, spec: ComputerSpec, running: Running) -> int | None:
        groups = self._groups(spec, running)
        groups.let_swap()
        return await asyncio.to_thread(page_out, groups.processes(), then=groups.reclaim)

    async def stats(self, spec: ComputerSpec, running: Running) -> Usage:
        return self._groups(spec, running).usage()

    # --- scopes ---

    async def create_scope(self, spec: ComputerSpec, running: Running, channel: int) -> None:
        self._groups(spec, running).create_scope(channel)

    async def join_scope(self, spec: ComputerSpec, running: Running, channel: int, pid: int) -> None:
        self._groups(spec, running).join_scope(channel, pid, running.pid1.pid)

    async def end_scope(self, spec: ComputerSpec, running: Running, channel: int) -> ScopeEnded:
        return await self._groups(spec, running).end_scope(channel)

    async def exec(self, spec: ComputerSpec, running: Running, argv: Sequence[str]) -> int:
        return await self.engine.execute(container.container_name(spec), list(argv), EXEC_SECONDS)

    # --- memory stays in memory ---

    async def hibernate(self, spec: ComputerSpec, running: Running, folder: Path, key: bytes | None = None) -> ImageMade:
        raise Unsupported("The docker driver keeps memory by freezing only.")

    async def settle(self, spec: ComputerSpec, running: Running) -> None:
        """There is no hibernation to undo."""

    async def wake(
        self, spec: ComputerSpec, folder: Path, made_by: str, attempt: Path, key: bytes | None = None, files: Sequence[SecretFile] = ()
    ) -> Running:
        raise Unsupported("The docker driver keeps memory by freezing only.")

    async def found(self, spec: ComputerSpec) -> Running | None:
        return None

    # --- files: as with bubblewrap ---

    async def place_files(self, spec: ComputerSpec) -> None:
        await super().place_files(spec)
        (Path(spec.folder) / "disk").chmod(0o700)

    # --- details ---

    async def _configuration(self, spec: ComputerSpec, argv: Sequence[str] | None, files: Sequence[Bind]) -> dict[str, Any]:
        folder, inside = Path(spec.folder), self.paths(spec)
        runtime = await asyncio.to_thread(ensure_runtime, self._state / "runtime")
        python = await self.builder.python(host_base=spec.host_base)
        binds = interior.tools(host_base=spec.host_base, python=python)
        binds += interior.guest(runtime=runtime, bundles=folder / "bundles", run=folder / "run") + interior.trust(spec)
        supervisor = supervisor_argv(
            python=inside.python, runtime=inside.runtime, socket=f"{inside.run}/host.sock", log=GUEST_LOG, egress=bool(spec.egress)
        )
        facts = await self._facts()
        return container.configuration(
            spec,
            state=self._state,
            argv=argv or supervisor,
            variables=interior.variables(host_base=spec.host_base, python=python) | interior.told(spec),
            binds=[Bind(source=str(await asyncio.to_thread(self._places, binds)), target=container.OURS), *binds, *files],
            own_parent=facts.cgroup_names == "cgroupfs",
        )

    async def _facts(self) -> EngineFacts:
        """How the engine is set up; asked again after a start that failed."""
        if self._known is None:
            facts = await self.engine.facts()
            facts.require(grafting.STORAGE)
            self._known = facts
        return self._known

    def _places(self, binds: Sequence[Bind]) -> Path:
        """A folder with a place for each of ours: shown read-only, a guest can't put its own files beside them."""
        folder = self._state / "docker/places"
        for bind in binds:
            if bind.target.startswith(f"{container.OURS}/"):
                (folder / bind.target.removeprefix(f"{container.OURS}/")).mkdir(parents=True, exist_ok=True)
        (self._state / _ENGINE_NOTE).write_text(str(self.engine.socket.absolute()))
        return folder

    async def _made(self, name: str, config: dict[str, Any]) -> str:
        for _ in range(IMPORTS):
            try:
                return await self.engine.create(name, config)
            except EngineFailed as error:
                if error.status != 404:
                    raise
            # The image without files isn't there yet, or somebody removes what no container stands on.
            await self.engine.import_image(container.IMAGE, container.TAG, container.EMPTY_ARCHIVE)
        return await self.engine.create(name, config)

    async def _give_up(self, spec: ComputerSpec, groups: ComputerGroups | None) -> None:
        self._known = None
        if groups is not None:
            await groups.end()
        with contextlib.suppress(EngineFailed):  # what went wrong before is what is told
            await self.end(spec, None)

    def _noted_groups(self, spec: ComputerSpec) -> ComputerGroups | None:
        """Where the last container's groups were, if they lay among ours."""
        try:
            container_id = (Path(spec.folder) / _CONTAINER_NOTE).read_text()
        except FileNotFoundError:
            return None
        return groups_named(self._hierarchies, spec.mark, container_id)

    def _groups(self, spec: ComputerSpec, running: Running) -> ComputerGroups:
        found = groups_at(self._hierarchies, spec.mark, running.cgroups)
        if found is None:
            raise Unsupported("This host has no cgroups for the docker driver.")
        return found


def engine_of(state: Path) -> Path | None:
    """The socket of the engine that a state folder's Computers were last started by; None where that never was."""
    try:
        return Path((state / _ENGINE_NOTE).read_text())
    except FileNotFoundError:
        return None


def _changes(found: Mapping[str, Any] | None) -> Path:
    """The engine's folder for the changes of a container."""
    try:
        return Path((found or {})["GraphDriver"]["Data"]["UpperDir"])
    except (KeyError, TypeError):
        raise LaunchFailed("The Docker engine doesn't tell where it keeps a container's files.") from None
