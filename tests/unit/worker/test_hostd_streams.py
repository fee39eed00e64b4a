"""A supervisor's stream belongs to the worker that got it from hostd, and to no process that this worker starts. I6."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helmr.host.hostd.client import HostdClient

pytestmark = pytest.mark.anyio


@contextmanager
def child() -> Iterator[None]:
    """A process that is started as a worker starts hostd: it outlives the worker, and gets whatever may be inherited."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", "import signal; signal.pause()"], {})
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def test_a_process_that_the_worker_starts_does_not_keep_a_supervisors_stream_open(tmp_path: Path) -> None:
    """Else the supervisor never learns that its worker died, and no other worker gets it: its Turns would run for ever."""
    loop = asyncio.get_running_loop()
    path = tmp_path / "hostd.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        async with asyncio.timeout(30):
            connecting = asyncio.create_task(HostdClient.connect(path))
            served, _ = await loop.sock_accept(listener)
            client = await connecting
            attaching = asyncio.create_task(client.attach("c", 1))
            asked = json.loads(await loop.sock_recv(served, 1 << 16))
            supervisor, given = socket.socketpair()
            supervisor.setblocking(False)
            socket.send_fds(served, [json.dumps({"id": asked["id"], "ok": {}, "fd": True}).encode() + b"\n"], [given.fileno()])
            given.close()
            stream = await attaching
            with child():
                stream.close()
                assert await loop.sock_recv(supervisor, 1) == b""
            supervisor.close()
            served.close()
            await client.close()
