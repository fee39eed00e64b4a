"""The host of a `helmr dev`: hostd in a process of its own, the worker in this one, joined to the control plane by calls. [D4]"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.dev.folder import DataFolder
from helmr.host.hostd.client import HostdClient
from helmr.host.worker import HostdProcess, Worker, WorkerConfig, local_links
from helmr.protocol.errors import SetupError

NAME: Final = "dev"
WELCOME_SECONDS: Final = 30.0
END_SECONDS: Final = 30.0


class LocalHost:
    """A Service. hostd and its Computers of an earlier run are taken up again; `stop` ends them all."""

    def __init__(self, folder: DataFolder, plane: ControlPlane) -> None:
        self._plane = plane
        self._hostd = HostdProcess(folder.host)
        self._worker = Worker(
            WorkerConfig(state=folder.worker, name=NAME),
            hostd=self._hostd.connect,
            links=local_links(lambda link: plane.links.open(NAME, link)),
            blobs=self,
        )

    async def start(self) -> None:
        """Return once the worker is welcome. Raises `SetupError` when this machine can't run Computers."""
        await self._hostd.ensure()
        await self._worker.start()
        try:
            async with asyncio.timeout(WELCOME_SECONDS):
                await self._worker.wait_welcome()
        except TimeoutError:
            raise SetupError("The worker was not taken in by the control plane.", hint="Look into helmr.log in the data folder.") from None

    async def stop(self) -> None:
        """End the worker, every Computer's processes, and hostd. Files of Computers stay."""
        await self._worker.stop()
        await end_hostd(self._hostd)

    async def fetch(self, environment: str, digest: str) -> Path:
        """A `BlobSource`: the control plane's own folder."""
        return await self._plane.blobs.path(NAME, environment, digest)


async def end_hostd(hostd: HostdProcess) -> int:
    """End a hostd and the processes of its Computers; how many those were.

    One that was killed is started once more, since only it can end them. Nothing happens for a folder that no hostd ever had. Raises
    `SetupError` when it does not end.
    """
    if not hostd.folder.exists():
        return 0
    await hostd.ensure()
    client = await HostdClient.connect(hostd.folder / "hostd.sock")
    try:
        ended = await client.shutdown(end_computers=True)
        async with asyncio.timeout(END_SECONDS):
            await client.wait_closed()
    except TimeoutError:
        raise SetupError("hostd does not end.", hint=f"Its log is {hostd.folder / 'hostd.log'}.") from None
    finally:
        await client.close()
    return ended
