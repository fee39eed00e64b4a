"""A Docker engine of one's own, by Debian's docker.io: all that it has lies in one folder, and nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

START_SECONDS = 120.0
END_SECONDS = 120.0
OPTIONS = ("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false", "--storage-driver=overlay2")


class EngineProcess:
    """An engine that can be killed and started again on the same folder."""

    def __init__(self, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.folder = folder
        self._prefix = prefix
        self.socket = folder / "docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, *options: str) -> None:
        """Return once it answers. Skips the test where it doesn't run."""
        places = [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        argv = [*self._prefix, "dockerd", *OPTIONS, *options, *places, f"--host=unix://{self.socket}"]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._process = process
        async with asyncio.timeout(START_SECONDS):
            while not await _answers(self.socket):
                if process.poll() is not None:
                    pytest.skip(f"dockerd doesn't run here: {(self.folder / 'log').read_text()[-500:]}")
                await asyncio.sleep(0.05)  # a socket that isn't there gives no event

    @property
    def entered(self) -> tuple[str, ...]:
        """What starts a program in the engine's mount namespace, as that program."""
        assert self._process is not None
        return ("nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", "--")

    async def end(self) -> None:
        """By SIGTERM: it ends its containerd, and its containers unless they may outlive it."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, END_SECONDS)

    async def kill(self) -> None:
        """By SIGKILL, and wait for its containerd, which the kernel ends then: the next engine would take one that is dying for its own,
        and also one that is dead where the host's init is slow to reap."""
        assert self._process is not None
        note = self.folder / "exec/containerd/containerd.pid"
        containerd = os.pidfd_open(int(note.read_text()))
        try:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, END_SECONDS)
            ended, _, _ = await asyncio.to_thread(select.select, [containerd], [], [], END_SECONDS)
            assert ended
            note.unlink()
        finally:
            os.close(containerd)

    def clear(self) -> None:
        """Remove what is left of it on the host."""
        left = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1].startswith(f"{self.folder}/")]
        for mount in reversed(left):
            subprocess.run(["umount", "--lazy", mount], check=True)
        shutil.rmtree(self.folder)


@contextlib.asynccontextmanager
async def engine_process(*options: str, subordinate: tuple[str, int] | None = None) -> AsyncIterator[EngineProcess]:
    """A running engine. Skips the test where there can be none.

    `subordinate`: an account and the first id of a range that it has in the engine's own mount namespace; the host's files stay.
    """
    if os.geteuid() != 0:
        pytest.skip("a Docker engine needs root")
    if shutil.which("dockerd") is None:
        pytest.skip("needs dockerd: apt-get install docker.io")
    if subordinate is not None and not all(Path(name).is_file() for name in ("/etc/subuid", "/etc/subgid")):
        pytest.skip("needs /etc/subuid and /etc/subgid")
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir="/var/tmp"))  # a short path: its sockets lie deep below
    prefix: list[str] = []
    if subordinate is not None:
        account, first = subordinate
        folder.chmod(0o711)
        (folder / "ids").write_text(f"{account}:{first}:65536\n")
        over = 'mount --bind $0/ids /etc/subuid && mount --bind $0/ids /etc/subgid && exec "$@"'
        prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", over, str(folder)]
    made = EngineProcess(folder, prefix)
    try:
        await made.start(*options)
        yield made
    finally:
        await made.end()
        made.clear()


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[Path]:
    """The socket of a running engine. Skips the test where there can be none."""
    async with engine_process() as made:
        yield made.socket


class Engines:
    """The engine that tests of one process share, started by the first that wants it."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._socket: Path | None = None

    async def socket(self) -> Path:
        if self._socket is None:
            self._socket = await self._stack.enter_async_context(engine())
        return self._socket


async def _answers(socket: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    try:
        writer.write(b"GET /_ping HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.read()
    except ConnectionError:
        return False  # it listens, and doesn't serve yet
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
