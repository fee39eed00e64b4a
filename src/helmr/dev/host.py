"""The host of a `helmr dev`: hostd in a process of its own, the worker in this one, joined to the control plane by calls. [D4]"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.dev.folder import DataFolder
from helmr.host.hostd.client import HostdClient
from helmr.host.sandbox.spawn import readable
from helmr.host.worker import HostdProcess, Worker, WorkerConfig, local_links
from helmr.protocol.errors import SetupError
from helmr.protocol.storage import OWN_MACHINE, WaterMarks

NAME: Final = "dev"
WELCOME_SECONDS: Final = 30.0
END_SECONDS: Final = 30.0


class LocalHost:
    """A Service: the worker. Computers of an earlier run are taken up again; `stop` leaves them to hostd."""

    def __init__(self, folder: DataFolder, hostd: HostdProcess, plane: ControlPlane) -> None:
        self._plane = plane
        self._worker = Worker(
            WorkerConfig(state=folder.worker, name=NAME, storage=WaterMarks.from_environ(default=OWN_MACHINE)),
            hostd=hostd.connect,
            links=local_links(lambda link: plane.links.open(NAME, link)),
            blobs=self,
            saves=_LocalSaves(plane, lambda: self._worker.id),
        )

    async def start(self) -> None:
        """Return once the worker is welcome. Raises `SetupError`."""
        await self._worker.start()
        try:
            async with asyncio.timeout(WELCOME_SECONDS):
                await self._worker.wait_welcome()
        except TimeoutError:
            raise SetupError("The worker was not taken in by the control plane.", hint="Look into helmr.log in the data folder.") from None

    async def wait(self) -> None:
        """Wait until the worker ends, which only a failure makes it do before `stop`; raises that failure."""
        await self._worker.wait()

    async def stop(self) -> None:
        """Let go of links and streams."""
        await self._worker.stop()

    async def fetch(self, environment: str, digest: str) -> Path:
        """A `BlobSource`: the control plane's own folder."""
        return await self._plane.blobs.path(NAME, environment, digest)


class _LocalSaves:
    """A `SaveStore`: the control plane's own."""

    def __init__(self, plane: ControlPlane, worker: Callable[[], str]) -> None:
        self._objects = plane.save_objects
        self._worker = worker

    async def put(self, computer: str, name: str, file: Path) -> None:
        await self._objects.put_file(self._worker(), computer, name, file)

    async def fetch(self, computer: str, name: str, target: Path) -> None:
        await self._objects.fetch(self._worker(), computer, name, target)


async def end_hostd(hostd: HostdProcess) -> int:
    """End a hostd and the processes of its Computers; how many those were. Its own process is gone when this returns.

    One that was killed is started once more, since only it can end them. Nothing happens where neither
    runs. Raises `SetupError` when it does not end.
    """
    computers, socket = hostd.folder / "computers", hostd.folder / "hostd.sock"
    if not socket.exists() and not (computers.is_dir() and any(computers.iterdir())):
        return 0
    await hostd.ensure()
    process = await asyncio.to_thread(hostd.watch)
    client = await HostdClient.connect(socket)
    try:
        ended = await client.shutdown(end_computers=True)
        async with asyncio.timeout(END_SECONDS):
            await client.wait_closed()
            if process is not None:
                await readable(process)
    except TimeoutError:
        raise SetupError("hostd does not end.", hint=f"Its log is {hostd.folder / 'hostd.log'}.") from None
    finally:
        await client.close()
        if process is not None:
            os.close(process)
    return ended
