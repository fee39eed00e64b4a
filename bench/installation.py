"""A whole installation for measuring: PostgreSQL with fsync on, `helmr serve`, `helmr worker`, hostd: each a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from helmr.client import HelmrClient
from helmr.control.service.principals import KEY_PREFIX
from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig
from helmr.dev.host import end_hostd
from helmr.host.worker import HostdProcess
from helmr.publish.project import load_project
from helmr.publish.upload import publish

PROJECT = Path(__file__).parent / "project"
WORKER_TOKEN = "bench-worker-token"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Installation:
    """An async context manager. `kill_server` and `start_server` are for crashes."""

    def __init__(self, driver: str = "bubblewrap") -> None:
        self.driver = driver
        self.folder = Path(tempfile.mkdtemp(prefix="helmr-bench-", dir="/var/tmp"))
        self.folder.chmod(0o711)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = KEY_PREFIX + "bench" * 8
        self.postgres = EmbeddedPostgres(PostgresConfig(folder=self.folder / "postgres"))
        self.hostd = HostdProcess(self.folder / "hostd", driver)  # pyright: ignore[reportArgumentType]
        self.dsn = ""
        self.server: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        self.dsn = await self.postgres.start()
        await self.start_server()
        self.worker = self._spawn("worker", "--state", str(self.folder / "worker"), "--hostd-state", str(self.folder / "hostd"), log="worker")
        async with HelmrClient(self.url, self.key) as client:
            await publish(client.deployments, load_project(PROJECT))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in (self.worker, self.server):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        await end_hostd(self.hostd)
        await self.postgres.stop()
        await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(self.folder)], check=False)

    async def start_server(self) -> None:
        self.server = self._spawn("serve", log="server")
        async with aiohttp.ClientSession() as http:
            for _ in range(600):
                try:
                    async with http.get(self.url + "/readyz") as reply:
                        if reply.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                if self.server.poll() is not None:
                    raise RuntimeError((self.folder / "server.log").read_text()[-3000:])
                await asyncio.sleep(0.02)
        raise TimeoutError("the server does not get ready")

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()

    def marks(self) -> list[tuple[str, str, int]]:
        """Every execution mark of every Computer: (S or E, Turn, CLOCK_MONOTONIC ns)."""
        found: list[tuple[str, str, int]] = []
        for path in (self.folder / "hostd").rglob("marks"):
            for line in path.read_text().splitlines():
                kind, turn, at = line.split()
                found.append((kind, turn, int(at)))
        return found

    def _spawn(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "DATABASE_URL": self.dsn,
            "HELMR_PORT": str(self.port),
            "HELMR_BLOBS": str(self.folder / "blobs"),
            "HELMR_WORKER_TOKEN": WORKER_TOKEN,
            "HELMR_WORKER_CREDENTIAL": WORKER_TOKEN,
            "HELMR_API_URL": self.url,
            "HELMR_API_KEY": self.key,
            "HELMR_LOG_LEVEL": "warning",
        }
        with (self.folder / f"{log}.log").open("ab") as sink:
            return subprocess.Popen(
                [sys.executable, "-m", "helmr.cli", *arguments], env=environment, stdout=sink, stderr=subprocess.STDOUT, cwd=self.folder
            )
