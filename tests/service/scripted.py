"""A scripted host: a worker's end of a link whose Session processes are played by the test, frame by frame.

The control plane under test is real, its database too; only what would run in Computers is a script.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests import apart
from tests.model.invariants import check
from tests.service.timelines import check_events

from helmr.control.service.plane import ControlPlane, PlaneConfig
from helmr.control.service.principals import Principal, ensure_environment
from helmr.control.store.pool import Database
from helmr.control.store.queries import identity
from helmr.host.worker.link_local import local_pair
from helmr.objects.folder import FolderStore
from helmr.protocol import frames, jsontext, streams
from helmr.protocol.ids import new_id
from helmr.protocol.link import SLOT, control, guest, split
from helmr.protocol.manifest import AgentManifest, ImageManifest, Manifest, TemplateManifest
from helmr.protocol.wire import to_wire
from helmr.testing.deployment import deploy

Script = Callable[["Process", dict[str, Any]], Awaitable[None]]


class Process:
    """One Session process as the host plays it."""

    def __init__(self, host: ScriptedHost, slot: int, computer: str, channel: int, opened: dict[str, Any]) -> None:
        self.host, self.slot, self.computer, self.channel, self.opened = host, slot, computer, channel, opened
        self.op = 0
        self.acked = 0
        self.kept: list[tuple[int, bytes]] = []
        self.received: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()
        self.alive = True
        self.started: list[str] = []

    @property
    def session_id(self) -> str:
        return self.opened["session"]["id"]

    def say(self, kind: str, **members: Any) -> int:
        """A numbered frame upwards, kept until acknowledged."""
        self.op += 1
        payload = jsontext.dumps({"t": kind, **members})
        self.kept.append((self.op, payload))
        self.host.up(self.slot, frames.encode(self.channel, self.op, payload))
        return self.op

    def output(self, turn: str, text: str, **members: Any) -> int:
        return self.say("turn.output", turn=turn, content=[{"type": "text", "text": text}], **members)

    def settle(self, turn: str, status: str = "completed", **members: Any) -> int:
        if status == "completed":
            members.setdefault("result", None)
        return self.say("turn.settled", turn=turn, status=status, **members)

    def hear(self, op: int, payload: bytes) -> None:
        self.acked = max(self.acked, op)
        self.kept = [(number, data) for number, data in self.kept if number > self.acked]
        if payload:
            said = json.loads(payload)
            self.received.append(said)
            if said["t"] == "turn.start" and said["turn"]["id"] not in self.started:
                self.started.append(said["turn"]["id"])
        self.arrived.set()

    async def heard(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The count-th frame of that kind, waited for at most five seconds."""
        async with asyncio.timeout(5):
            while True:
                found = [said for said in self.received if said["t"] == kind]
                if len(found) >= count:
                    return found[count - 1]
                self.arrived.clear()
                await self.arrived.wait()

    async def began(self, turn: str) -> None:
        """This Turn started; the same one may be told again after an attach (I5)."""
        async with asyncio.timeout(5):
            while turn not in self.started:
                self.arrived.clear()
                await self.arrived.wait()

    async def acknowledged(self, op: int) -> None:
        async with asyncio.timeout(5):
            while self.acked < op:
                self.arrived.clear()
                await self.arrived.wait()

    def die(self, cause: str = "killed", **members: Any) -> None:
        """The process and all of its descendants are gone."""
        self.alive = False
        self.host.report_exit(self, cause, **members)


class StreamEnd(Process):
    """What serves a stream on the Computer."""

    def hear(self, op: int, payload: bytes) -> None:
        message = streams.read_payload(payload)
        self.received.append({"t": "data", "data": message} if isinstance(message, bytes) else dict(message))
        self.arrived.set()

    def send(self, data: bytes) -> None:
        self.host.up(self.slot, frames.encode(self.channel, 0, streams.data_payload(data)))

    def word(self, kind: str, **members: Any) -> None:
        self.host.up(self.slot, frames.encode(self.channel, 0, streams.word(kind, **members)))


class ScriptedHost:
    """Says hello, starts Computers at once, and hands each started Session process to the test."""

    def __init__(self, plane: ControlPlane, *, name: str = "scripted", auto_init: bool = True, cpu: float = 1000.0) -> None:
        self.plane, self.name, self.auto_init, self.cpu = plane, name, auto_init, cpu
        self.worker_id = new_id()
        self.link: Any = None
        self.computers: dict[str, dict[str, Any]] = {}
        self.slots: dict[int, str] = {}
        self.processes: dict[tuple[str, int], Process] = {}
        self.starts: asyncio.Queue[Process] = asyncio.Queue()
        self.programs: asyncio.Queue[Process] = asyncio.Queue()
        self.served: asyncio.Queue[StreamEnd] = asyncio.Queue()
        self.said: list[dict[str, Any]] = []
        self.exits: dict[tuple[str, int], dict[str, Any]] = {}
        self.refuse_computers: dict[str, Any] | None = None
        self.refuse_sleep: dict[str, Any] | None = None
        self.refuse_destroy: dict[str, Any] | None = None
        self.hesitant = False
        """Computers fall asleep only when the test says so, with `fall_asleep`."""
        self.hold_saves = False
        """Saves are reported only when the test says so, with `report_save`."""
        self.refuse_saves: dict[str, Any] | None = None
        self.refuse_restores: dict[str, Any] | None = None
        self.base = "none"
        self.memory = 1 << 42
        self.tells_acked = False
        """Its supervisors say up to where they were acknowledged, as real ones do."""
        self.changed = asyncio.Event()

    def connect(self) -> None:
        """A new link, as after a restart of either side."""
        near, far = local_pair(asyncio.get_running_loop())
        self.link = far
        end = self.plane.links.open(self.name, near)
        near.bind(end)
        far.bind(self)
        computers = [{"computer": c, "fence": v["fence"], "state": v.get("state", "running")} for c, v in self.computers.items()]
        worker = {
            "id": self.worker_id,
            "name": self.name,
            "driver": "scripted",
            "base": self.base,
            "cpu": self.cpu,
            "memory": self.memory,
            "version": "0",
        }
        self.link.send(control("hello", protocol=1, worker=worker, computers=computers))

    def disconnect(self) -> None:
        self.link.close("test")
        self.slots.clear()

    def up(self, slot: int, data: bytes) -> None:
        if slot in self.slots:
            self.link.send(guest(slot, data))

    def report_exit(self, process: Process, cause: str, **members: Any) -> None:
        said = {"computer": process.computer, "channel": process.channel, "cause": cause, "ended": 1, "seconds": 0.01, **members}
        self.exits[process.computer, process.channel] = said
        if process.slot in self.slots:
            self.link.send(control("session.exited", **said))

    def on_message(self, message: bytes) -> None:
        slot, body = split(message)
        if slot:
            computer = self.slots.get(slot)
            for frame in frames.FrameReader().feed(body):
                process = self.processes.get((computer or "", frame.channel))
                if process is not None and process.alive:
                    process.hear(frame.op, frame.payload)
            return
        said = json.loads(body)
        self.said.append(said)
        self.changed.set()
        handler = getattr(self, "_" + said["t"].replace(".", "_"), None)
        if handler is not None:
            handler(said)

    def on_closed(self) -> None:
        self.slots.clear()

    async def told(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(5):
            while True:
                for said in self.said:
                    if said["t"] == kind:
                        return said
                self.changed.clear()
                await self.changed.wait()

    def _computer_start(self, said: dict[str, Any]) -> None:
        if self.refuse_computers is not None:
            self.link.send(
                control("computer.state", computer=said["computer"], fence=said["fence"], state="failed", error=self.refuse_computers)
            )
            return
        if said.get("restore") is not None and self.refuse_restores is not None:
            self.link.send(
                control("computer.state", computer=said["computer"], fence=said["fence"], state="failed", error=self.refuse_restores)
            )
            return
        self.computers[said["computer"]] = {"fence": said["fence"]}
        self.link.send(control("computer.state", computer=said["computer"], fence=said["fence"], state="running"))

    def _computer_attach(self, said: dict[str, Any]) -> None:
        self.slots = {slot: computer for slot, computer in self.slots.items() if computer != said["computer"]}
        self.slots[said["slot"]] = said["computer"]
        mine = [p for p in self.processes.values() if p.computer == said["computer"]]
        channels = {str(p.channel): {"alive": p.alive} for p in mine if p.alive or (p.computer, p.channel) in self.exits}
        if self.tells_acked:
            for process in mine:
                channels.get(str(process.channel), {})["acked"] = process.acked
        self.link.send(control("computer.attached", computer=said["computer"], slot=said["slot"], channels=channels))
        for process in mine:
            process.slot = said["slot"]
            process.acked = max(process.acked, said["acked"].get(str(process.channel), 0))
            process.kept = [(op, data) for op, data in process.kept if op > process.acked]
            for op, data in process.kept:
                self.link.send(guest(said["slot"], frames.encode(process.channel, op, data)))
        for (computer, _), report in self.exits.items():
            if computer == said["computer"]:
                self.link.send(control("session.exited", **report))

    def _computer_sleep(self, said: dict[str, Any]) -> None:
        self.slots = {slot: computer for slot, computer in self.slots.items() if computer != said["computer"]}
        if self.refuse_sleep is not None:
            self._tell_state(said["computer"], "awake", error=self.refuse_sleep)
        elif not self.hesitant:
            self.fall_asleep(said["computer"])

    def fall_asleep(self, computer: str) -> None:
        self.computers[computer]["state"] = "asleep"
        self._tell_state(computer, "asleep", rung="freeze", seconds=0.002)

    def _computer_wake(self, said: dict[str, Any]) -> None:
        self.computers[said["computer"]]["state"] = "running"
        self._tell_state(said["computer"], "awake", rung="freeze", seconds=0.003)

    def _computer_save(self, said: dict[str, Any]) -> None:
        if not self.hold_saves:
            self.report_save(said)

    def report_save(self, order: dict[str, Any], **members: Any) -> None:
        """What became of the save that `order` asked for: done, unless the host refuses saves."""
        named = {name: order[name] for name in ("computer", "fence", "save")}
        name = hashlib.sha256(order["save"].encode()).hexdigest()
        facts = {"files": 3, "bytes": 4096, "changed_files": 1, "new_bytes": 100, "seconds": 0.01, "generation": 1}
        made = {"manifest": name, "packs": [name[::-1]], **facts}
        self.link.send(control("computer.saved", **named, **({"error": self.refuse_saves} if self.refuse_saves else made | members)))

    def _computer_stop(self, said: dict[str, Any]) -> None:
        self.computers.pop(said["computer"], None)
        self.link.send(control("computer.state", computer=said["computer"], fence=said["fence"], state="gone", reason="stopped"))

    def _computer_destroy(self, said: dict[str, Any]) -> None:
        if self.refuse_destroy is not None:
            self.link.send(
                control("computer.state", computer=said["computer"], fence=said["fence"], state="failed", error=self.refuse_destroy)
            )
            return
        self.computers.pop(said["computer"], None)
        for process in self.processes.values():
            if process.computer == said["computer"] and process.alive:
                process.die("killed")
        self.link.send(control("computer.state", computer=said["computer"], fence=said["fence"], state="gone", reason="destroyed"))

    def _tell_state(self, computer: str, state: str, **members: Any) -> None:
        fence = self.computers[computer]["fence"]
        self.link.send(control("computer.state", computer=computer, fence=fence, state=state, **members))

    def _session_start(self, said: dict[str, Any]) -> None:
        slot = next(slot for slot, computer in self.slots.items() if computer == said["computer"])
        process = Process(self, slot, said["computer"], said["channel"], said["open"])
        self.processes[said["computer"], said["channel"]] = process
        if self.auto_init:
            process.say("init.done")
        self.starts.put_nowait(process)

    def _command_start(self, said: dict[str, Any]) -> None:
        known = self.processes.get((said["computer"], said["channel"]))
        if known is None:
            slot = next(slot for slot, computer in self.slots.items() if computer == said["computer"])
            known = self.processes[said["computer"], said["channel"]] = Process(self, slot, said["computer"], said["channel"], said)
            self.programs.put_nowait(known)
        self.link.send(control("session.started", computer=said["computer"], channel=said["channel"], pid=7))

    def _stream_start(self, said: dict[str, Any]) -> None:
        slot = next(slot for slot, computer in self.slots.items() if computer == said["computer"])
        served = StreamEnd(self, slot, said["computer"], said["channel"], said["stream"])
        self.processes[said["computer"], said["channel"]] = served
        self.served.put_nowait(served)

    async def next_stream(self) -> StreamEnd:
        async with asyncio.timeout(5):
            return await self.served.get()

    def _session_kill(self, said: dict[str, Any]) -> None:
        process = self.processes.get((said["computer"], said["channel"]))
        if process is not None and process.alive:
            process.die("killed")

    def _session_forget(self, said: dict[str, Any]) -> None:
        self.exits.pop((said["computer"], said["channel"]), None)

    def _image_build(self, said: dict[str, Any]) -> None:
        self.link.send(control("image.built", request=said["request"], layers=[]))

    async def next_program(self) -> Process:
        async with asyncio.timeout(5):
            return await self.programs.get()

    async def next_process(self) -> Process:
        async with asyncio.timeout(5):
            return await self.starts.get()


class House:
    """A control plane on a database, an Environment with Agents, and who asks."""

    def __init__(self, plane: ControlPlane, database: Database, principal: Principal, config: PlaneConfig) -> None:
        self.plane, self.database, self.principal, self.config = plane, database, principal, config
        self.host = ScriptedHost(plane)

    async def create(self, text: str | None = "go", *, agent: str = "talker", **options: Any) -> dict[str, Any]:
        if text is not None:
            options["input"] = [{"type": "text", "text": text}]
        reply = await self.plane.sessions.create(self.principal, agent=agent, **options)
        return json.loads(reply.body)

    async def enqueue(self, session_id: str, text: str = "more", key: str | None = None) -> dict[str, Any]:
        reply = await self.plane.turns.enqueue(self.principal, session_id, [{"type": "text", "text": text}], key)
        return json.loads(reply.body)

    async def turn(self, session_id: str, turn_id: str, wait: float = 5.0) -> dict[str, Any]:
        return json.loads(await self.plane.turns.get(self.principal, session_id, turn_id, wait))

    async def events(self, session_id: str) -> list[dict[str, Any]]:
        page = json.loads(await self.plane.events.page(self.principal, session_id, 0, 1000))
        sequences = [record["sequence"] for record in page["records"]]
        assert sequences == list(range(1, len(sequences) + 1)), "the timeline has a gap"
        return page["records"]

    async def kinds(self, session_id: str) -> list[str]:
        return [record["kind"] for record in await self.events(session_id)]

    async def session(self, session_id: str) -> dict[str, Any]:
        return to_wire(await self.plane.sessions.get(self.principal, session_id))

    async def until(self, session_id: str, kind: str, count: int = 1) -> dict[str, Any]:
        """Follow the timeline until the count-th event of that kind."""
        found = 0
        async with asyncio.timeout(5):
            async for batch in self.plane.events.follow(self.principal, session_id, 0):
                for event in batch:
                    if event.kind == kind:
                        found += 1
                        if found == count:
                            return json.loads(event.body)
        raise AssertionError(f"the timeline ended without {kind}")

    async def warm(self) -> tuple[str, Process]:
        """A Session whose process is ready and idle."""
        made = await self.create("warm up")
        process = await self.host.next_process()
        await process.heard("turn.start")
        process.settle(made["turn"]["id"], result=None)
        await self.turn(made["session"]["id"], made["turn"]["id"])
        return made["session"]["id"], process


def manifest(*agents: AgentManifest, bundle: str = hashlib.sha256(b"").hexdigest()) -> Manifest:
    template = TemplateManifest(id="small", image=ImageManifest(name="small", base="host"))
    return Manifest(protocol=1, bundle=bundle, agents=agents or (agent("talker"),), templates=(template,))


def agent(name: str, **options: Any) -> AgentManifest:
    return AgentManifest(id=name, template="small", file="agents/a.py", line=1, attribute=name, **options)


@asynccontextmanager
async def house(dsn: str, tmp_path: Path, *agents: AgentManifest, size: int = 8, config: PlaneConfig | None = None) -> AsyncIterator[House]:
    """A running control plane with a connected scripted host."""
    from helmr.control.service.principals import PERMISSIONS

    config = config or PlaneConfig()
    database = Database(dsn, size=size)
    await database.start()
    async with database.connection() as connection:
        environment_id = await ensure_environment(connection, "test", "main")
        principal_id = new_id()
        await identity.insert_principal(
            connection, id=principal_id, environment_id=environment_id, kind="api_key", name="tester", permissions=list(PERMISSIONS)
        )
    await deploy(database, environment_id, manifest(*agents))
    plane = ControlPlane(database, FolderStore(tmp_path / "blobs"), config)
    await plane.start()
    principal = Principal(id=principal_id, environment_id=environment_id, kind="api_key", permissions=frozenset(PERMISSIONS))
    made = House(plane, database, principal, config)
    made.host.connect()
    try:
        await made.host.told("welcome")
        yield made
    finally:
        await made.plane.stop()  # another one than at the beginning, where that was taken over
        await plane.stop()
        assert database.deadlocks == 0, "a transaction was run again after a deadlock (I3)"
        await database.stop()
        fetch = functools.partial(apart.fetch, dsn)
        await check(fetch)
        await check_events(fetch)


__all__ = ["SLOT", "House", "Process", "Script", "ScriptedHost", "agent", "deploy", "house", "manifest"]
