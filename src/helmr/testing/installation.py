"""A whole installation for tests and measurements: PostgreSQL, control planes, a worker and hostd, each a process of its own.

Everything of it lies in one folder that is new for each and removed at the end. What runs in it can be killed and started again, part
by part; `marks` reads what the Agents of `tests/scenarios` and `bench` write on their Computers' disks, so that nothing that the
control plane says of itself must be believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

import aiohttp

from helmr.client import HelmrClient
from helmr.client.retry import RetryPolicy
from helmr.control.service.principals import KEY_PREFIX
from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig
from helmr.dev.host import end_hostd
from helmr.host.hostd.client import HostdClient
from helmr.host.sandbox.spawn import readable
from helmr.host.worker import HostdProcess
from helmr.publish.project import load_project
from helmr.publish.upload import publish
from helmr.testing.database import memory_folder
from helmr.testing.database_files import lay_database
from helmr.testing.host_processes import Tree, naming, tree_of

CREDENTIAL: Final = "hlmr_wk_of-this-installation"
DRAIN: Final = "1s"
"""How long the worker lets Sessions end by themselves at SIGTERM."""
START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.02
_PATIENT: Final = RetryPolicy(attempts=1000, longest=0.3)
_WORKSPACES: Final = ("disk/upper/workspace", "disk/workspace")
"""Where `/workspace` lies in a Computer's folder: with bubblewrap, without isolation."""


class Mark(NamedTuple):
    """What an Agent left on its Computer's disk: a kind, a name (mostly a Turn's id), CLOCK_MONOTONIC nanoseconds."""

    kind: str
    name: str
    at: int


class Process(Protocol):
    """A part that runs; a `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int, /) -> None: ...


class Plane:
    """A control plane of the installation: its address outlives its process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Process | None = None
        self.fault = ""
        """What its process is armed with."""


class Installation:
    """An async context manager around the project in `project`, published to `planes` control planes of one database.

    `worker_url`, set before the start, is where the worker looks for its control plane; by default it is the first one. `cores` is what the
    worker offers, so that a test can have it full. `start` starts a process, as `subprocess.Popen` does. `in_memory`: the
    database's files lie in memory where there is room.
    """

    def __init__(
        self,
        project: Path,
        *,
        driver: str = "bubblewrap",
        planes: int = 1,
        settings: Mapping[str, str] | None = None,
        cores: float = 1000,
        start: Callable[..., Process] = subprocess.Popen,
        in_memory: bool = False,
    ) -> None:
        self.project = project
        self._start = start
        self.folder = Path(tempfile.mkdtemp(prefix="helmr-installation-", dir="/var/tmp"))
        self.folder.chmod(0o711)
        self.planes = [Plane(number) for number in range(planes)]
        self.key = KEY_PREFIX + "installation" * 4
        self.worker_url = self.planes[0].url
        self.dsn = ""
        self.worker: Process | None = None
        self._database = self.folder
        if in_memory:
            self._database = Path(tempfile.mkdtemp(prefix="helmr-installation-", dir=memory_folder()))
            self._database.chmod(0o711)
        self.postgres = EmbeddedPostgres(PostgresConfig(folder=self._database / "postgres", settings=settings or {}))
        self._hostd = _Hostd(self.folder / "hostd", driver, start)
        self._driver = driver
        self._cores = cores

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(lay_database, self._database / "postgres")
            self.dsn = await self.postgres.start()
            for plane in self.planes:
                await self.start_server(plane=plane.number)
            await self._hostd.ensure()
            self.start_worker()
            await self.publish()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End everything, whatever state it is in; the folder is gone afterwards."""
        self.kill_worker()
        for plane in self.planes:
            self.kill_server(plane=plane.number)
        await end_hostd(self._hostd)
        self._end_stragglers()
        await self.postgres.stop()
        for folder in {self.folder, self._database}:
            await asyncio.to_thread(shutil.rmtree, folder)

    def _end_stragglers(self) -> None:
        """A hostd that a worker had begun to start when it was killed: it listens later than anybody looks."""
        for found in naming([str(self._hostd.folder)]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(found.split()[0]), signal.SIGKILL)

    def client(self, plane: int = 0) -> HelmrClient:
        """A client of one control plane, which outlasts its restarts."""
        return HelmrClient(self.planes[plane].url, self.key, retry=_PATIENT)

    async def publish(self, project: Path | None = None) -> None:
        """Publish and promote a project, by default the installation's own; returns once it is current."""
        async with self.client() as client:
            deployment = await publish(client.deployments, load_project(project or self.project))
            said = [text async for text in client.deployments.log(deployment.id)]
            found = await client.deployments.get(deployment.id)
            if found.status != "deployed":
                raise RuntimeError(f"the Deployment failed: {found} {''.join(said)}")

    # --- control planes ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.planes[0].url

    @property
    def server(self) -> Process | None:
        """The first control plane's process."""
        return self.planes[0].process

    async def start_server(self, *, plane: int = 0, fault: str = "") -> None:
        """Returns once it serves. `fault` arms fault points of `control/service/faults.py`: `after_commit:flush=kill@3`."""
        started = self.planes[plane]
        started.fault = fault
        log = f"server{plane}" if plane else "server"
        started.process = self._spawn("serve", "--port", str(started.port), log=log, HELMR_FAULT=fault)
        async with aiohttp.ClientSession() as http, asyncio.timeout(START_SECONDS):
            while True:
                try:
                    async with http.get(started.url + "/readyz") as reply:
                        if reply.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                if started.process.poll() is not None:
                    if fault:
                        return  # it reached its fault point before it was ready
                    raise RuntimeError(f"the control plane ended: {self.log(log)}")
                await asyncio.sleep(_LOOK_SECONDS)  # a socket that isn't there gives no event

    def kill_server(self, *, plane: int = 0) -> None:
        """kill -9."""
        _kill(self.planes[plane].process)

    async def server_died(self, *, plane: int = 0, seconds: float = START_SECONDS) -> None:
        """Wait until a control plane has reached its fault point. Raises `TimeoutError`."""
        process = self.planes[plane].process
        assert process is not None
        await asyncio.to_thread(process.wait, seconds)

    # --- the host ---------------------------------------------------------------------------------------------------------

    def start_worker(self) -> None:
        """A worker, which starts a hostd when none runs."""
        state, hostd = str(self.folder / "worker"), str(self._hostd.folder)
        self.worker = self._spawn(
            "worker",
            "--state",
            state,
            "--hostd-state",
            hostd,
            "--driver",
            self._driver,
            "--drain",
            DRAIN,
            "--cpu",
            str(self._cores),
            log="worker",
        )

    def kill_worker(self) -> None:
        """kill -9; hostd and the Computers are none of its children."""
        _kill(self.worker)

    def hostd_pid(self) -> int | None:
        """The pid of hostd, by its socket; None when none listens."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self._hostd.folder / "hostd.sock"))
            except OSError:
                return None
            return int(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    async def kill_hostd(self) -> None:
        """kill -9; returns when it is gone. A living worker starts another. One that is just starting is waited for."""
        async with asyncio.timeout(START_SECONDS):
            while (pid := self.hostd_pid()) is None:
                await asyncio.sleep(_LOOK_SECONDS)  # a socket that isn't there gives no event
        descriptor = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            await readable(descriptor)
        finally:
            os.close(descriptor)

    async def hostd(self) -> HostdClient:
        """A client of its hostd, which the caller closes."""
        return await self._hostd.connect(_ignore)

    async def computer(self, computer_id: str) -> Tree:
        """The processes of a running Computer, from its supervisor down."""
        client = await self.hostd()
        try:
            told = await client.info()
        finally:
            await client.close()
        return tree_of(next(int(entry["pid"]) for entry in told["computers"] if entry["computer"] == computer_id))

    def marks(self, computer_id: str = "") -> list[Mark]:
        """What Agents wrote into `/workspace/marks`, on one Computer or on all, in each Computer's order."""
        found: list[Mark] = []
        computers = self._hostd.folder / "computers"
        for path in (path for place in _WORKSPACES for path in computers.glob(f"{computer_id or '*'}/{place}/marks")):
            for line in path.read_text().splitlines():
                kind, name, at = line.split()
                found.append(Mark(kind, name, int(at)))
        return found

    def log(self, name: str, characters: int = 3000) -> str:
        """The end of the log of `server`, `server1`, `worker` or `hostd`."""
        path = self._hostd.folder / "hostd.log" if name == "hostd" else self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-characters:] if path.exists() else ""

    def environment(self, plane: int = 0) -> dict[str, str]:
        """The variables by which a CLI reaches this installation."""
        return {"HELMR_API_URL": self.planes[plane].url, "HELMR_API_KEY": self.key}

    def _spawn(self, *arguments: str, log: str, **more: str) -> Process:
        environment = {
            **os.environ,
            "DATABASE_URL": self.dsn,
            "HELMR_BLOBS": str(self.folder / "blobs"),
            "HELMR_WORKER_TOKEN": CREDENTIAL,
            "HELMR_WORKER_CREDENTIAL": CREDENTIAL,
            "HELMR_LOG_LEVEL": "warning",
            "HELMR_STORAGE_HIGH": "100%",  # the machine's disk is not what is tested or measured
            **self.environment(),
            "HELMR_API_URL": self.worker_url,
            **more,
        }
        command = [sys.executable, "-m", "helmr.cli", *arguments]
        with (self.folder / f"{log}.log").open("ab") as sink:
            return self._start(command, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=self.folder)


class _Hostd(HostdProcess):
    """hostd, started as the other parts are; one that a worker starts anew is started as workers do."""

    def __init__(self, folder: Path, driver: str, start: Callable[..., Process]) -> None:
        super().__init__(folder, driver)  # pyright: ignore[reportArgumentType]
        self._start = start
        self._process: Process | None = None

    def _run(self, arguments: list[str], environment: Mapping[str, str], log: Path) -> int:
        with log.open("ab") as sink:
            files = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
            self._process = self._start(arguments, env=environment, start_new_session=True, **files)
        return self._process.pid

    def _reap(self) -> int | None:
        status = None if self._pid is None or self._process is None else self._process.poll()
        if status is not None:
            self._pid = None
        return status


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ignore(name: str, members: Mapping[str, Any]) -> None:
    """hostd's notifications are the worker's."""


def _kill(process: Process | None) -> None:
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
