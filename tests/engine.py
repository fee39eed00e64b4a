"""A Docker engine of one's own, by Debian's docker.io: all that it has lies in one folder, and nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

START_SECONDS = 120.0
END_SECONDS = 120.0


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[Path]:
    """The socket of a running engine. Skips the test where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("a Docker engine needs root")
    if shutil.which("dockerd") is None:
        pytest.skip("needs dockerd: apt-get install docker.io")
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir="/var/tmp"))  # a short path: its sockets lie deep below
    socket = folder / "docker.sock"
    options = ["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false", "--storage-driver=overlay2"]
    places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", f"--host=unix://{socket}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["dockerd", *options, *places], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await _answers(socket):
                if process.poll() is not None:
                    pytest.skip(f"dockerd doesn't run here: {(folder / 'log').read_text()[-500:]}")
                await asyncio.sleep(0.05)  # a socket that isn't there gives no event
        yield socket
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # it ends its containerd, too
        await asyncio.to_thread(process.wait, END_SECONDS)
        left = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1].startswith(f"{folder}/")]
        for mount in reversed(left):
            subprocess.run(["umount", "--lazy", mount], check=True)
        shutil.rmtree(folder)


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
