"""A worker between a scripted hostd and a scripted control plane, over either kind of link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.unit.worker.link_server import links_of
from tests.unit.worker.save_folder import FolderSaves
from tests.unit.worker.scripted_control import ScriptedControl
from tests.unit.worker.scripted_host import ScriptedHostd, ScriptedSupervisor

from helmr.host.worker.config import WorkerConfig
from helmr.host.worker.worker import Worker
from helmr.objects import FolderStore
from helmr.protocol.errors import BlobNotFound
from helmr.protocol.ids import new_id
from helmr.protocol.manifest import ImageManifest, ImageStep, TemplateManifest
from helmr.protocol.wire import to_wire


class ScriptedBlobs:
    """A `BlobSource` over a folder, which a test can make fail."""

    def __init__(self, root: Path) -> None:
        self.store = FolderStore(root)
        self.fetched: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.hold: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def fetch(self, environment: str, digest: str) -> Path:
        self.fetched.append(digest)
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        if digest in self.fails:
            raise self.fails[digest]
        if not await self.store.exists(digest):
            raise BlobNotFound(digest=digest)
        return await self.store.path(digest)


class Rig:
    """The worker and all around it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.hostd = ScriptedHostd()
        self.control = ScriptedControl()
        self.blobs = ScriptedBlobs(folder / "store")
        self.saves = FolderSaves(folder / "saves")
        self.hostd.trees = folder / "trees"
        self.environment = new_id()
        self.computer = new_id()
        self.config = WorkerConfig(state=folder / "worker", name="rig", reconnect_seconds=0.01, drain_seconds=2.0)
        self.template = TemplateManifest(
            id="repo",
            image=ImageManifest(
                name="repo",
                base="host",
                steps=(
                    ImageStep(kind="env", env={"COLOUR": "blue", "SHAPE": "round"}),
                    ImageStep(kind="workdir", dest="src"),
                    ImageStep(kind="user", user="agent"),
                ),
            ),
        )
        self.worker: Worker | None = None
        self.stack = AsyncExitStack()

    async def start_worker(self) -> Worker:
        links = await self.stack.enter_async_context(links_of(self.kind, self.control.accept))
        worker = self.worker = Worker(self.config, hostd=self.hostd.connect, links=links, blobs=self.blobs, saves=self.saves)
        await worker.start()
        await worker.wait_welcome()
        return worker

    async def stop_worker(self) -> None:
        if self.worker is not None:
            await self.worker.stop()
            self.worker = None

    async def start_computer(self) -> ScriptedSupervisor:
        self.control.send("computer.start", computer=self.computer, fence=1, environment=self.environment, template=to_wire(self.template))
        await self.control.expect("computer.state", computer=self.computer, state="running")
        return self.hostd.supervisors[self.computer]

    async def attach(self, slot: int = 5, fence: int = 1, acked: dict[str, int] | None = None) -> dict[str, object]:
        self.control.send("computer.attach", computer=self.computer, fence=fence, slot=slot, acked=acked or {})
        return await self.control.expect("computer.attached", computer=self.computer, slot=slot)

    async def bundle(self, text: bytes = b"agent = 1\n") -> str:
        """A published bundle of one file; its digest."""
        from helmr.objects import File, write_listing

        blob = await self.blobs.store.put(text)
        return await self.blobs.store.put(write_listing({"agents/one.py": File(blob=blob, size=len(text))}))

    def start_session(self, channel: int, bundle: str, **more: object) -> None:
        members = {"preload": ["json"], "environment": {"TEAM": "x", "SHAPE": "square"}, "open": {"agent": "one"}, **more}
        self.control.send("session.start", computer=self.computer, channel=channel, bundle=bundle, **members)

    async def session(self, channel: int = 7) -> ScriptedSupervisor:
        """A Computer that runs one Session."""
        supervisor = await self.start_computer()
        await self.attach()
        self.start_session(channel, await self.bundle())
        await self.control.expect("session.started", channel=channel)
        return supervisor


@pytest.fixture(params=["local", "websocket"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    found = Rig(str(request.param), tmp_path)
    try:
        await found.start_worker()
        yield found
    finally:
        await found.stop_worker()
        await found.hostd.close()
        await found.stack.aclose()


@pytest.fixture
async def local_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig in one process whose worker is not started yet."""
    found = Rig("local", tmp_path)
    try:
        yield found
    finally:
        await found.stop_worker()
        await found.hostd.close()
        await found.stack.aclose()
