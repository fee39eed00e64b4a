"""The hostd of a state folder: found, or started when none runs. It outlives whoever started it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from helmr.host.hostd.client import HostdClient, HostdRefused
from helmr.host.worker.failure import logger
from helmr.host.worker.ports import Notify
from helmr.protocol.errors import SetupError

START_SECONDS: Final = 30.0
"""How long a hostd that was just started may take to answer: it probes the host first."""

AGAIN_SECONDS: Final = 0.2

CREDENTIALS: Final = frozenset({"HELMR_WORKER_CREDENTIAL", "HELMR_API_KEY"})
"""Of the worker's environment hostd gets all but these."""

DriverName = Literal["bubblewrap", "gvisor", "docker", "process"]


class HostdProcess:
    """hostd on `folder`. What it writes goes to `hostd.log` there; the rest is for one that is started here.

    With a `socket` it is somebody else's, who listens there: none is ever started here, and one that is away is waited for.
    """

    def __init__(
        self,
        folder: Path,
        driver: DriverName = "bubblewrap",
        egress_allow: Sequence[str] = (),
        egress_ca: Path | None = None,
        socket: Path | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self._given = socket
        self._egress_allow = tuple(egress_allow)
        self._egress_ca = egress_ca
        self._driver: DriverName = driver
        self._pid: int | None = None
        """The one started here, until its end was seen."""
        self._log_from = 0
        """Where in the log what that one says begins."""
        self._starting = asyncio.Lock()

    async def connect(self, notify: Notify) -> HostdClient:
        """A `HostdConnect`: starts a hostd where none listens. Raises `ConnectionError` when none can be had."""
        try:
            return await HostdClient.connect(self._socket, notify)
        except OSError:
            try:
                await self.ensure()
            except SetupError as error:
                raise ConnectionError(error.detail) from error
            return await HostdClient.connect(self._socket, notify)

    async def ensure(self) -> None:
        """Return once a hostd answers. Raises `SetupError` with the end of its log."""
        async with self._starting:
            if await self._answers():
                return
            if self._given is not None:
                await self._until_there(self._given)
                return
            self._reap()
            log = self.folder / "hostd.log"
            try:
                self._pid = await asyncio.to_thread(self._spawn, log)
            except OSError as error:
                raise SetupError(f"hostd could not be started on {self.folder}: {error.strerror}.") from error
            logger.info("hostd.started", pid=self._pid, state=str(self.folder), driver=self._driver)
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._settled(log)
            except TimeoutError:
                tail = await asyncio.to_thread(_tail, log, self._log_from)
                raise SetupError(f"hostd did not answer within {START_SECONDS:.0f} s: {tail}", hint=f"Its log is {log}.") from None

    async def _until_there(self, place: Path) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    await asyncio.sleep(AGAIN_SECONDS)  # a socket that isn't there gives no event
                    if await self._answers():
                        return
        except TimeoutError:
            raise SetupError(
                f"No hostd answers at {place} for user {os.geteuid()}.",
                hint="See that `helmr hostd --socket` runs there, and that --worker-user or --worker-group names this user.",
            ) from None

    async def _settled(self, log: Path) -> None:
        """Wait until a hostd answers and the one started here is either that one or has ended.

        Two that are started at once agree by their lock; a straggler that came up after a later shutdown would undo it.
        """
        while True:
            answers, status = await self._answers(), self._reap()
            if answers and (self._pid is None or await asyncio.to_thread(self._listener) == self._pid):
                return
            if status is not None and not answers and not await self._answers():
                tail = await asyncio.to_thread(_tail, log, self._log_from)
                raise SetupError(f"hostd ended with {status}: {tail}", hint=f"Its log is {log}.")
            await asyncio.sleep(0.02)  # neither a socket that isn't there nor another's process gives an event

    def watch(self) -> int | None:
        """A descriptor, the caller's to close, that is readable once the hostd that listens now is gone; None where the system has none."""
        pid = self._listener()
        if pid is None or not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            return None

    def _listener(self) -> int | None:
        """The pid that listens on the socket; the one started here where the system doesn't tell."""
        if not hasattr(socket, "SO_PEERCRED"):
            return self._pid
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(f"/proc/self/fd/{folder}/hostd.sock")  # a path of any length: the kernel takes 107 bytes
                return int(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        except OSError:
            return None
        finally:
            os.close(folder)

    @property
    def _socket(self) -> Path:
        return self._given or self.folder / "hostd.sock"

    async def _answers(self) -> bool:
        """Whether one listens and knows its host: it may listen and then find that the host can't do what is needed."""
        try:
            client = await HostdClient.connect(self._socket)
        except OSError:
            return False
        try:
            await client.info()
        except (ConnectionError, HostdRefused):
            return False
        finally:
            await client.close()
        return True

    def _spawn(self, log: Path) -> int:
        """A process in a session of its own: signals of this terminal and our end are none of its business."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log_from = log.stat().st_size if log.exists() else 0
        arguments = [sys.executable, "-m", "helmr.host.hostd", "--state", str(self.folder), "--driver", self._driver]
        arguments += [argument for entry in self._egress_allow for argument in ("--egress-allow", entry)]
        arguments += ["--egress-ca", str(self._egress_ca.absolute())] if self._egress_ca is not None else []
        return self._run(arguments, {name: value for name, value in os.environ.items() if name not in CREDENTIALS}, log)

    def _run(self, arguments: list[str], environment: Mapping[str, str], log: Path) -> int:
        writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), writing, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawn(sys.executable, arguments, environment, file_actions=files, setsid=True)

    def _reap(self) -> int | None:
        """The exit status of the one started here, once it ended."""
        if self._pid is None:
            return None
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            self._pid = None
            return None
        if pid == 0:
            return None
        self._pid = None
        return os.waitstatus_to_exitcode(status)


def _tail(log: Path, start: int) -> str:
    lines = log.read_bytes()[start:].decode(errors="replace").strip().splitlines()
    return " / ".join(lines[-3:])[-600:] or "it said nothing"
