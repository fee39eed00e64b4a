"""The host daemon: owns the Computers of a state folder and answers on `hostd.sock`. See `docs/architecture.md`, "hostd"."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from helmr.host.hostd import failure
from helmr.host.hostd.computer import Computer
from helmr.host.hostd.histories import Histories
from helmr.host.hostd.leftovers import Leftovers
from helmr.host.hostd.methods import Methods
from helmr.host.hostd.records import Record, damaged, load_all
from helmr.host.hostd.rpc import Connection, groups_of, peer_of
from helmr.host.hostd.runsocket import bind_short
from helmr.host.hostd.saving import Saves, end_savers
from helmr.host.hostd.watchdog import Watchdog
from helmr.host.sandbox import crowds, mounts
from helmr.host.sandbox.bubblewrap import Bubblewrap
from helmr.host.sandbox.cgroups import find_hierarchies
from helmr.host.sandbox.docker.driver import Docker
from helmr.host.sandbox.driver import Driver, Ending, Probe
from helmr.host.sandbox.egress.rules import Exemption
from helmr.host.sandbox.grouping import end_steps
from helmr.host.sandbox.gvisor.driver import Gvisor
from helmr.host.sandbox.identity import parents, state_of
from helmr.host.sandbox.process import WARNING, ProcessDriver
from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.runner import build_mark
from helmr.host.sandbox.spawn import reaped
from helmr.protocol.errors import AlreadyRunning, SetupError

DriverName = Literal["bubblewrap", "gvisor", "docker", "process"]
_DRIVERS: Final[Mapping[DriverName, Callable[[Path], Driver]]] = {
    "bubblewrap": Bubblewrap,
    "gvisor": Gvisor,
    "docker": Docker,
    "process": ProcessDriver,
}
SWEEP_SECONDS: Final = 5.0
LOCK_ATTEMPTS: Final = 20
LOCK_PAUSE_SECONDS: Final = 0.05

_log = structlog.get_logger("helmr.hostd")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostdConfig:
    state: Path
    driver: DriverName = "bubblewrap"
    worker_uid: int | None = None
    """The unprivileged user whose worker may connect; None: hostd's own user."""
    worker_gid: int | None = None
    """A group whose members may connect, too: each of them may do all that a worker may."""
    socket: Path | None = None
    """Where it listens; None: `hostd.sock` in the state folder, which another user can't reach."""
    exemptions: tuple[Exemption, ...] = ()
    """The operator's exceptions for the networks of Computers and build steps [C4]."""
    store: Path | None = None
    """Certificates of the authorities by which the origins of protected Secrets are verified [X1]; None: the system's."""


class Hostd:
    """A Service. `start` returns once the socket answers; `stop` leaves the Computers running."""

    def __init__(self, config: HostdConfig) -> None:
        self.config = config
        self.driver: Driver = _DRIVERS[config.driver](config.state)
        self.computers: dict[str, Computer] = {}
        self.connections: set[Connection] = set()
        self.histories = Histories(config.state / "histories.json")
        self.watchdog = Watchdog(config.state / "leases.json", freeze=self._lapse, thaw=self._renew)
        self.saves = Saves(config.state)
        self.ended = asyncio.Event()
        """Set when a `hostd.shutdown` has been answered."""
        self.creating = asyncio.Lock()
        """Held while a Computer is made."""
        self.damaged: set[str] = set()
        """Computers whose records could not be read: their files stay, and the next start makes them new ones."""
        self.leftovers = Leftovers(self)
        self._methods = Methods(self)
        self._lock: int | None = None
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._probes: asyncio.Task[list[Probe]] | None = None
        self._swept = False

    async def start(self) -> None:
        """Take the state folder, go on with the Computers in it, and listen. Raises `AlreadyRunning`, `SetupError`."""
        state = self.config.state
        self._lock = await _take_folder_soon(state)
        try:
            become_subreaper()
            if self.config.driver == "process":
                _log.warning("driver.process", warning=WARNING)
            await _end_probes(state)
            await _end_builds(state)
            await end_savers(state)
            (state / "computers").mkdir(exist_ok=True)
            self._swept = await self.driver.sweep([record.spec for record in load_all(state / "computers")])
            self._probes = asyncio.ensure_future(self.driver.probe())
            await self._adopt()
            self._listen(self._socket)
        except BaseException:
            await self.stop()
            raise
        self.spawn(self.watchdog.run())
        self.spawn(self._sweep())
        self.spawn(self.leftovers.run())
        _log.info("hostd.started", state=str(state), driver=self.driver.name, computers=len(self.computers))

    async def stop(self) -> None:
        """Stop answering; Computers go on. Idempotent."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._socket.unlink(missing_ok=True)
            self._listener = None
        tasks = {*self._tasks, *([self._probes] if self._probes is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for computer in self.computers.values():
            await computer.release()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def probes(self) -> list[Probe]:
        """The table of what this host can do, once it is known."""
        assert self._probes is not None
        return await asyncio.shield(self._probes)

    def new_computer(self, record: Record, *, whole: bool = True) -> Computer:
        computer = Computer(
            record,
            self.driver,
            histories=self.histories,
            spawn=self.spawn,
            exited=self._exited,
            exemptions=self.config.exemptions,
            store=self.config.store,
            whole=whole,
        )
        self.computers[record.computer] = computer
        return computer

    def notify(self, name: str, **members: Any) -> None:
        """Tell every client."""
        for connection in tuple(self.connections):
            connection.notify(name, members)

    def spawn(self, work: Awaitable[None]) -> None:
        """Run in the background until done or until hostd stops."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    # --- details ---

    async def _adopt(self) -> None:
        folder = self.config.state / "computers"
        records = load_all(folder)
        self.damaged = damaged(folder)
        for record in records:
            await self.new_computer(record).adopt()
        await self.leftovers.end()
        self.watchdog.load(name for name, computer in self.computers.items() if computer.is_running)
        for name in self.watchdog.current():
            await self._renew(name)  # a hostd that was killed may have been holding it still

    @property
    def _socket(self) -> Path:
        return self.config.socket or self.config.state / "hostd.sock"

    def _listen(self, path: Path) -> None:
        uid, gid = self.config.worker_uid, self.config.worker_gid
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            bind_short(listener, path)
            path.chmod(0o600)
            if uid is not None or gid is not None:
                os.chown(path, -1 if uid is None else uid, -1 if gid is None else gid)
                path.chmod(0o600 if gid is None else 0o660)
        except OSError as error:
            listener.close()
            raise SetupError(f"hostd can't listen at {path}: {error.strerror}.") from error
        listener.listen(64)
        listener.setblocking(False)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            stream, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        uid = peer_of(stream).uid
        gid = self.config.worker_gid
        if uid not in {0, os.geteuid(), self.config.worker_uid} and (gid is None or gid not in groups_of(stream)):
            _log.warning("connection.refused", uid=uid)
            stream.close()
            return
        self.spawn(self._serve(Connection(stream, self._methods.answer, self.spawn)))

    async def _serve(self, connection: Connection) -> None:
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            self._methods.disconnected(connection)

    async def _lapse(self, computer: str) -> None:
        with contextlib.suppress(failure.NotRunning, KeyError):
            await self.computers[computer].freeze()

    async def _renew(self, computer: str) -> None:
        with contextlib.suppress(failure.NotRunning, KeyError):
            await self.computers[computer].thaw()

    def _exited(self, computer: Computer, ending: Ending) -> None:
        self.watchdog.forget(computer.id)
        members: dict[str, Any] = {"computer": computer.id, "fence": computer.record.fence}
        if ending.code is not None:
            members["code"] = ending.code
        if ending.signal is not None:
            members["signal"] = ending.signal
        if ending.out_of_memory is not None:
            members["oom"] = {"limit": ending.out_of_memory.limit, "peak": ending.out_of_memory.peak}
        self.notify("computer.exited", **members)

    async def _sweep(self) -> None:
        """Reap orphans that became our children: zombies that nobody has taken for a whole round. And what the driver couldn't yet [C9]."""
        before: set[int] = set()
        while True:
            zombies = zombie_children()
            for pid in before & zombies:
                reaped(pid)
            before = zombies - before
            if not self._swept:
                self._swept = await self.driver.sweep([computer.record.spec for computer in self.computers.values()])
            await asyncio.sleep(SWEEP_SECONDS)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task.failed", error=repr(error), exc_info=error)


async def _end_builds(state: Path) -> None:
    """The step that a hostd which was killed was building, and what it had written of its layer [A7]."""
    await crowds.kill(lambda: crowds.marked(build_mark(state)))
    await end_steps(find_hierarchies(), build_mark(state))
    for folder in await asyncio.to_thread(lambda: list(state.glob("images/building/*"))):
        await asyncio.to_thread(remove_tree, folder)


async def _end_probes(state: Path) -> None:
    """What a hostd that was killed while it probed has left."""
    await crowds.kill(lambda: crowds.mounting(f"{state}/.probe-"))
    for folder in await asyncio.to_thread(lambda: list(state.glob(".probe-*"))):
        await asyncio.to_thread(remove_tree, folder)


async def _take_folder_soon(state: Path) -> int:
    """As `take_folder`, but patient for a moment: a program that a killed hostd was about to start holds its lock until it is started."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            return take_folder(state)
        except AlreadyRunning:
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
    return take_folder(state)


def take_folder(state: Path) -> int:
    """Lock the state folder for this process; the descriptor that holds the lock. Raises `AlreadyRunning`, `SetupError`."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.chmod(0o700)
        descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(f"The state folder {state} can't be used: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyRunning(f"A hostd runs on {state} already.") from None
    return descriptor


def become_subreaper() -> None:
    """Orphans of sandboxes come to us, where they are reaped, and not to the host's init."""
    if os.path.isdir("/proc/self/ns"):
        mounts.prctl(mounts.PR_SET_CHILD_SUBREAPER, 1)


def zombie_children() -> set[int]:
    own = os.getpid()
    return {pid for pid, parent in parents().items() if parent == own and state_of(pid) == "Z"}
