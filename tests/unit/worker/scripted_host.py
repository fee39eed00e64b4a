"""A hostd and supervisors that do what a test says: real frames on real sockets, without any process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.unit.worker.save_folder import restore, save

from helmr.host.worker.ports import HostdRefused, Notify
from helmr.protocol.frames import PROTOCOL, SUPERVISOR, Frame, FrameReader, encode

GIB = 1 << 30


class ScriptedSupervisor:
    """Keeps numbered frames until they are acknowledged, and says them again after each attach, as a supervisor must."""

    def __init__(self) -> None:
        self.channels: dict[int, dict[str, Any]] = {}
        self.kept: dict[int, list[tuple[int, bytes]]] = {}
        self.down: list[Frame] = []
        self.starts: list[dict[str, Any]] = []
        self.exits: dict[int, dict[str, Any]] = {}
        self.attaches: list[dict[str, Any]] = []
        self.ignores: set[str] = set()
        """Kinds that it hears and does nothing about."""
        self.streams = 0
        self.held: dict[str, Any] = {}
        """What it says is in flight."""
        self.hello: bytes | None = None
        """Said in place of its hello, when set."""
        self._ops: dict[int, int] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._attached = False
        self._changed = asyncio.Condition()
        self._pumps: set[asyncio.Task[None]] = set()

    async def connect(self) -> socket.socket:
        """The far end of a new stream; a former stream ends."""
        self.hang_up()
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._writer, self._attached = writer, False
        self.streams += 1
        hello = {"t": "hello", "protocol": PROTOCOL, "python": "3.11", "channels": {str(n): told for n, told in self.channels.items()}}
        writer.write(self.hello if self.hello is not None else own(hello))
        pump = asyncio.create_task(self._pump(reader, writer))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return theirs

    def hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def close(self) -> None:
        self.hang_up()
        for pump in tuple(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def say(self, channel: int, payload: Mapping[str, Any] | bytes) -> int:
        """A numbered frame of a Session process; its op."""
        op = self._ops[channel] = self._ops.get(channel, 0) + 1
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.kept.setdefault(channel, []).append((op, data))
        if self._attached and self._writer is not None:
            self._writer.write(encode(channel, op, data))
        return op

    def say_own(self, kind: str, **members: Any) -> None:
        self.write(own({"t": kind, **members}))

    def write(self, data: bytes) -> None:
        """Raw bytes."""
        assert self._writer is not None
        self._writer.write(data)

    def waiting(self) -> int:
        """Bytes that wait to be read by the worker, apart from those in the socket."""
        assert self._writer is not None
        return self._writer.transport.get_write_buffer_size()

    def exit(self, channel: int, **how: Any) -> None:
        """The scope is over."""
        self.channels[channel]["alive"] = False
        self.exits[channel] = {"channel": channel, **how}
        if self._attached:
            self.say_own("scope.exited", **self.exits[channel])

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    def heard(self, kind: str) -> list[dict[str, Any]]:
        """The frames to the supervisor itself of one kind."""
        said = [json.loads(frame.payload) for frame in self.down if frame.channel == SUPERVISOR]
        return [members for members in said if members["t"] == kind]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(1 << 16):
                for frame in frames.feed(data):
                    self.down.append(frame)
                    if frame.channel == SUPERVISOR:
                        self._obey(json.loads(frame.payload), writer)
                    else:
                        self._trim(frame.channel, frame.op)
                async with self._changed:
                    self._changed.notify_all()
        except ConnectionError:
            pass  # the worker let go
        finally:
            writer.close()
            if self._writer is writer:
                self._writer, self._attached = None, False

    def _trim(self, channel: int, op: int) -> None:
        self.kept[channel] = [(number, data) for number, data in self.kept.get(channel, []) if number > op]

    def _obey(self, told: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        kind = told["t"]
        if kind in self.ignores:
            return
        channel = int(told.get("channel", 0))
        if kind == "attach":
            self.attaches.append(told)
            self._attached = True
            for number, op in told["acked"].items():
                self._trim(int(number), op)
            for number, kept in self.kept.items():
                for op, data in kept:
                    writer.write(encode(number, op, data))
            for members in self.exits.values():
                writer.write(own({"t": "scope.exited", **members}))
        elif kind == "ping":
            writer.write(own({"t": "pong", "n": told["n"], **({"held": self.held} if self.held else {})}))
        elif kind == "scope.start":
            self.starts.append(told)
            self.channels[channel] = {"pid": 100 + channel, "alive": True, "last_op": 0}
            writer.write(own({"t": "scope.started", "channel": channel, "pid": 100 + channel}))
        elif kind == "scope.kill" and self.channels.get(channel, {}).get("alive"):
            self.exit(channel, signal=9)
        elif kind == "scope.forget":
            self.channels.pop(channel, None)
            self.exits.pop(channel, None)
            self.kept.pop(channel, None)


def own(members: Mapping[str, Any]) -> bytes:
    return encode(SUPERVISOR, 0, json.dumps(members).encode())


@dataclass
class ScriptedHostd:
    """hostd's answers by method; a test changes `refuse` and the facts to script it."""

    computers: dict[str, dict[str, Any]] = field(default_factory=dict)
    supervisors: dict[str, ScriptedSupervisor] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refuse: dict[str, HostdRefused] = field(default_factory=dict)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What scope.end answers for a channel."""
    hold: dict[str, asyncio.Event] = field(default_factory=dict)
    """A method waits here before it answers."""
    connections: list[ScriptedConnection] = field(default_factory=list)
    trees: Path = Path("none")
    """Where Computers' files are that are saved and restored."""
    away: bool = False
    frozen: bool = False
    """Whether its Computers stand still."""
    disks: list[float] = field(default_factory=lambda: [0.5])
    """How full its disk is, one look after another; the last one stays."""
    history: dict[str, Any] | None = None
    """Which histories of the database it follows and left; None: it is of before there were such."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def connect(self, notify: Notify) -> ScriptedConnection:
        if self.away:
            raise ConnectionRefusedError("no hostd")
        connection = ScriptedConnection(self, notify)
        self.connections.append(connection)
        return connection

    def drop(self) -> None:
        """hostd dies; the supervisors go on."""
        for connection in self.connections:
            connection.closed.set()

    def notify(self, name: str, **members: Any) -> None:
        for connection in self.connections:
            if not connection.closed.is_set():
                connection.notify(name, members)

    def running(self, computer: str, environment: str, fence: Any = 1, **more: Any) -> ScriptedSupervisor:
        """Put a Computer there that already runs."""
        self.computers[computer] = {
            "computer": computer,
            "fence": fence,
            "environment": environment,
            "state": "running",
            "pid": 1,
            **more,
        }
        return self.supervisors.setdefault(computer, ScriptedSupervisor())

    def called(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.calls if name == method]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    async def close(self) -> None:
        for supervisor in self.supervisors.values():
            await supervisor.close()

    async def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((method, params))
        async with self.changed:
            self.changed.notify_all()
        if method in self.hold:
            await self.hold[method].wait()
        if method in self.refuse:
            raise self.refuse[method]
        computer = str(params.get("computer"))
        match method:
            case "info":
                return {
                    "version": "0",
                    "driver": "scripted",
                    "base": "b",
                    "boot": "1",
                    "probes": [],
                    "cpu": 2,
                    "memory": 10 * GIB,
                    "computers": list(self.computers.values()),
                    **({} if self.history is None else {"history": self.history}),
                }
            case "storage":
                share = self.disks.pop(0) if len(self.disks) > 1 else self.disks[0]
                return {"total": 100, "free": 100 - round(share * 100), "share": share}
            case "image.collect":
                return {"removed": [], "bytes": 0}
            case "history.enter" if self.history is None:
                raise HostdRefused("unknown_method", "hostd has no method 'history.enter'.")
            case "history.enter":
                return {"changed": False}
            case "image.ensure":
                self.notify("image.log", request=params["request"], text="step 1\n")
                return {"layers": ["layer-1"]}
            case "computer.start":
                self.running(computer, params["environment"], params["fence"], template=params["template"])
                return {"state": "running", "pid": 1}
            case "computer.save":
                return save(self.trees / computer, params)
            case "computer.restore":
                return restore(self.trees / computer, params)
            case "computer.bundle":
                return {"inside": f"/opt/helmr/bundles/{params['digest']}"}
            case "computer.stop" | "computer.destroy":
                self.computers.pop(computer, None)
                return {"ended": 3}
            case "computer.stats":
                return {"frozen": self.frozen}
            case "computer.hibernate":
                return {"rung": "freeze", "seconds": 0.01}
            case "scope.end":
                return {"ended": 0, "seconds": 0.01, "oom": None, **self.ends.get(params["channel"], {})}
            case _:
                return {}


class ScriptedConnection:
    """One connection of a worker to a `ScriptedHostd`."""

    def __init__(self, hostd: ScriptedHostd, notify: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._hostd = hostd
        self.notify = notify
        self.closed = asyncio.Event()

    async def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.closed.is_set():
            raise ConnectionResetError("hostd is gone")
        answer = asyncio.ensure_future(self._hostd.answer(method, dict(params)))
        closing = asyncio.ensure_future(self.closed.wait())
        try:
            await asyncio.wait((answer, closing), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ConnectionResetError("hostd died")
            return answer.result()
        finally:
            answer.cancel()
            closing.cancel()

    async def attach(self, computer: str, fence: Any, protected: Sequence[Mapping[str, Any]] | None = None) -> socket.socket:
        await self.call("computer.attach", {"computer": computer, "fence": fence, "protected_secrets": protected})
        held = self._hostd.computers.get(computer)
        if held is None:
            raise HostdRefused("computer_not_running", "It does not run.")
        if held["fence"] != fence:
            raise HostdRefused("fence_stale", "Another fence holds it.")
        return await self._hostd.supervisors[computer].connect()

    async def wait_closed(self) -> None:
        await self.closed.wait()

    async def close(self) -> None:
        self.closed.set()
