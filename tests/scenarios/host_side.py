"""The host side of an installation without a control plane: a worker, a hostd of its own and real guests, told by a script."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.unit.worker.link_server import links_of
from tests.unit.worker.save_folder import FolderSaves
from tests.unit.worker.scripted_control import ScriptedControl

from helmr.host.hostd.client import HostdClient
from helmr.host.worker import HostdProcess, Worker, WorkerConfig
from helmr.host.worker.hostd_process import DriverName
from helmr.objects import File, FolderStore, write_listing
from helmr.protocol.frames import Frame, encode
from helmr.protocol.ids import new_id
from helmr.protocol.manifest import ImageManifest, TemplateManifest
from helmr.protocol.wire import to_wire

AGENT = b"""
import os

from helmr import agent, image, template

box = template(id="box", image=image("box").from_host())


@agent(id="echo", template=box)
async def echo(turn, ctx):
    if turn.input[0]["text"] == "die":
        os.kill(os.getpid(), 9)
    await turn.output.write(f"hello {turn.input[0]['text']} from {os.getcwd()}")
    return None
"""


class Host:
    """The host side of an installation in one folder."""

    def __init__(
        self,
        folder: Path,
        driver: DriverName,
        *,
        agent: bytes = AGENT,
        egress: tuple[str, ...] = (),
        exceptions: tuple[str, ...] = (),
        limits: Mapping[str, Any] = MappingProxyType({}),
        secrets: Sequence[Mapping[str, Any]] = (),
        store: Path | None = None,
    ) -> None:
        """`agent` is the file of an Agent `echo`; `egress` the hosts of its Template, `limits` others of its members, `secrets` what its
        proxy exchanges; `exceptions` and `store` are the operator's."""
        self.folder, self.agent, self.egress, self.limits = folder, agent, egress, limits
        self.secrets = list(secrets)
        self.control = ScriptedControl()
        self.hostd = HostdProcess(folder / "hostd", driver, exceptions, store)
        self.store = FolderStore(folder / "store")
        self.computer, self.environment = new_id(), new_id()
        self.stack = AsyncExitStack()
        self.worker: Worker | None = None
        self.slot = 0

    async def fetch(self, environment: str, digest: str) -> Path:
        return await self.store.path(digest)

    async def start_worker(self, kind: str) -> None:
        links = await self.stack.enter_async_context(links_of(kind, self.control.accept))
        saves = FolderSaves(self.folder / "saves")
        config = WorkerConfig(state=self.folder / "worker")
        self.worker = Worker(config, hostd=self.hostd.connect, links=links, blobs=self, saves=saves)
        await self.worker.start()
        await self.worker.wait_welcome()

    async def periods_pass(self, condition: Callable[[], bool]) -> None:
        """One renew period after another is over for the Computer, without any time that passes, until the condition holds."""
        assert self.worker is not None
        async with asyncio.timeout(20):
            while not condition():
                pulse = self.worker._computers[self.computer]._attachment._pulse
                if pulse is not None and pulse._timer is not None:
                    pulse._timer.cancel()
                    pulse._look()
                await asyncio.sleep(0.01)

    async def stop_worker(self) -> None:
        if self.worker is not None:
            await self.worker.stop()
            self.worker = None

    async def start_computer(self) -> None:
        bound = tuple({"name": secret["name"], "env": secret["name"], "mode": "protected"} for secret in self.secrets)
        image = ImageManifest(name="box", base="host")
        template = TemplateManifest(id="box", image=image, egress=self.egress, secrets=bound, **self.limits)
        about = {"computer": self.computer, "environment": self.environment, "template": to_wire(template), **self._protected()}
        self.control.send("computer.start", fence=1, **about)
        await self.control.expect("computer.state", state="running")

    async def attach(self, acked: dict[str, int]) -> dict[str, Any]:
        self.slot += 1
        self.control.send("computer.attach", computer=self.computer, fence=1, slot=self.slot, acked=acked, **self._protected())
        return await self.control.expect("computer.attached", slot=self.slot)

    def _protected(self) -> dict[str, Any]:
        return {"protected_secrets": self.secrets} if self.secrets else {}

    async def start_session(self, channel: int) -> int:
        """Start the echo Agent; the pid of its process."""
        await self.open_session(channel)
        started = await self.control.expect("session.started", channel=channel)
        await self.heard(channel, "init.done")
        return int(started["pid"])

    async def open_session(self, channel: int) -> None:
        """Say that the echo Agent is to start."""
        blob = await self.store.put(self.agent)
        bundle = await self.store.put(write_listing({"agents/echo.py": File(blob=blob, size=len(self.agent))}))
        opening = {
            "t": "session.open",
            "session": {"id": new_id()},
            "agent": "echo",
            "computer": {"id": self.computer},
            "deployment": {"id": new_id()},
            "recovery": {"kind": "initial"},
            "file": "agents/echo.py",
            "attribute": "echo",
        }
        self.control.send(
            "session.start", computer=self.computer, channel=channel, bundle=bundle, preload=[], environment={"X": "1"}, open=opening
        )

    async def heard(self, channel: int, kind: str, turn: str | None = None) -> tuple[Frame, dict[str, Any]]:
        """The latest numbered frame of a kind (of a Turn)."""

        def find() -> list[tuple[Frame, dict[str, Any]]]:
            return [
                (frame, said)
                for frames in self.control.frames.values()
                for frame in frames
                if frame.channel == channel and frame.payload and (said := json.loads(frame.payload))["t"] == kind
                if said.get("turn") == turn
            ]

        await self.control.until(lambda: bool(find()))
        return find()[-1]

    def start_turn(self, channel: int, text: str, acked: int) -> str:
        turn = new_id()
        about = {"id": turn, "sequence": 1, "created_at": "2026-01-01T00:00:00.000000Z", "source": {"kind": "api"}}
        start = {"t": "turn.start", "turn": about, "input": [{"type": "text", "text": text}]}
        self.control.send_frames(self.slot, encode(channel, acked, json.dumps(start).encode()))
        return turn

    async def run_turn(self, channel: int, text: str, acked: int) -> tuple[int, str]:
        """The op of the settlement, and what the Turn wrote, which is acknowledged as a control plane does."""
        turn = self.start_turn(channel, text, acked)
        written, output = await self.heard(channel, "turn.output", turn)
        stored = {"t": "stored", "ops": [[written.op, 100 + written.op]]}
        self.control.send_frames(self.slot, encode(channel, written.op, json.dumps(stored).encode()))
        frame, settled = await self.heard(channel, "turn.settled", turn)
        assert settled["status"] == "completed", settled
        return frame.op, "".join(part["text"] for part in output["content"])


@asynccontextmanager
async def hosted(found: Host) -> AsyncIterator[Host]:
    """Ends everything of the host afterwards."""
    place = found.folder / "hostd" / "hostd.sock"
    try:
        yield found
    finally:
        await found.stop_worker()
        await found.stack.aclose()
        try:
            client = await HostdClient.connect(place)
        except OSError:
            await found.hostd.ensure()
            client = await HostdClient.connect(place)
        await client.shutdown(end_computers=True)
        await client.wait_closed()
        await client.close()


def lock_holder(folder: Path) -> int:
    """The pid of the hostd of a state folder, by its open lock file."""
    place = os.path.realpath(folder / "lock")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                links = [os.readlink(path) for path in (entry / "fd").iterdir()]
            except OSError:
                continue
            if place in links:
                return int(entry.name)
    raise LookupError("no hostd holds the lock")
