"""A host for tests: plays hostd (the socket) and the control plane (frames, storing, acknowledging) towards a real supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helmr.protocol.frames import FrameReader, encode

SOURCE = str(Path(__file__).parents[3] / "src")
BUNDLE = str(Path(__file__).parent / "bundle")
CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from helmr.guest.supervisor import main; main()"
SECONDS = 10.0


class Host:
    """Stores each frame once, by op; acknowledges what asks. `acknowledging` may be turned off, streams may be cut."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "host.sock")
        self.acknowledging = True
        self.attaching = True
        self.reading = asyncio.Event()
        self.reading.set()
        self.stored: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.ops: dict[int, int] = defaultdict(int)
        self.sequences: dict[tuple[int, int], int] = {}
        self.said: list[dict[str, Any]] = []
        self.joined: list[int] = []
        self.hellos = 0
        self.duplicates = 0
        self.cut_after: Callable[[], int | None] = lambda: None
        self.on_stored: Callable[[int, int, dict[str, Any]], None] | None = None
        self.streams: dict[int, Callable[[bytes], None]] = {}
        """Who takes the payloads of a stream's channel."""
        self._changed = asyncio.Condition()
        self._syncs: list[Callable[[], None]] = []
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self.process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Host:
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=1 << 22)
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", CODE, SOURCE, "--socket", self.path, stdin=asyncio.subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.process is not None and self._server is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), 5)
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    # --- what tests do ----------------------------------------------------------------------------------------------------

    def start(self, channel: int, attribute: str, file: str = "agents/agents.py", **members: Any) -> None:
        opening = {
            "session": {"id": f"session-{channel}", "key": "k"},
            "agent": attribute,
            "computer": "computer-1",
            "deployment": "deployment-1",
            "recovery": {"kind": "initial"},
            "bundle": BUNDLE,
            "file": file,
            "attribute": attribute,
            **members.pop("open", {}),
        }
        frame = {
            "t": "scope.start",
            "channel": channel,
            "zygote": "z",
            "preload": [],
            "path": [BUNDLE],
            "env": {},
            "cwd": "/",
            "open": opening,
        }
        self.say(0, {**frame, **members})

    def turn(self, channel: int, id: str, input: Any = None, **members: Any) -> None:
        turn = {"id": id, "sequence": 1, "created_at": "2026-01-01T00:00:00.000000Z", "source": {"kind": "api_key"}}
        self.say(channel, {"t": "turn.start", "turn": turn, "input": input, **members})

    def stop(self, channel: int, id: str, reason: str = "turn_interrupted", seconds: float = 10.0) -> None:
        self.say(channel, {"t": "turn.stop", "turn": id, "reason": reason, "seconds": seconds})

    def message(self, channel: int, turn: str, id: str, text: str) -> None:
        self.messages(channel, turn, {id: text})

    def messages(self, channel: int, turn: str, texts: dict[str, str]) -> None:
        """Messages by id, in one write: the Session process has the last before it handles the first."""
        assert self._writer is not None
        data = b""
        for id, text in texts.items():
            content = [{"type": "text", "text": text}]
            frame = {"t": "message", "id": id, "turn": turn, "content": content, "source": {"kind": "api_key"}}
            data += encode(channel, self.ops[channel], json.dumps(frame).encode())
        self._writer.write(data)

    def say(self, channel: int, payload: dict[str, Any] | None = None, op: int | None = None) -> None:
        if self._writer is not None:
            data = b"" if payload is None else json.dumps(payload).encode()
            self._writer.write(encode(channel, self.ops[channel] if op is None else op, data))

    def say_bytes(self, channel: int, payload: bytes) -> None:
        if self._writer is not None:
            self._writer.write(encode(channel, 0, payload))

    def cut(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    def attach(self) -> None:
        self.say(0, {"t": "attach", "acked": {str(channel): op for channel, op in self.ops.items() if channel}})

    def kinds(self, channel: int) -> list[str]:
        return [frame["t"] for frame in self.stored[channel]]

    def texts(self, channel: int) -> list[str]:
        return ["".join(part["text"] for part in frame["content"]) for frame in self.stored[channel] if frame["t"] == "turn.output"]

    def find(self, channel: int, kind: str, /, **members: Any) -> dict[str, Any] | None:
        frames = self.stored[channel] if channel else self.said
        return next((f for f in frames if f["t"] == kind and all(f.get(name) == value for name, value in members.items())), None)

    async def seen(self, channel: int, kind: str, /, **members: Any) -> dict[str, Any]:
        """The first stored frame (channel 0: what the supervisor said) of this kind with these members, once it is there."""
        found: dict[str, Any] | None = None

        def there() -> bool:
            nonlocal found
            found = self.find(channel, kind, **members)
            return found is not None

        await self.until(there, f"{kind} {members} on channel {channel}")
        assert found is not None
        return found

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(SECONDS), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            kinds = {channel: self.kinds(channel)[-20:] for channel in self.stored}
            raise AssertionError(f"never came: {what}; last stored {kinds}, said {str(self.said[-8:])[:4000]}") from None

    async def settled(self, channel: int, turn: str) -> dict[str, Any]:
        return await self.seen(channel, "turn.settled", turn=turn)

    async def until_true(self, condition: Callable[[], bool]) -> None:
        """For what only the kernel shows: looks again with each answer of the supervisor."""
        for n in range(1000):
            if condition():
                return
            self.said = [frame for frame in self.said if frame["t"] != "pong"]
            self.say(0, {"t": "ping", "n": n})
            await self.seen(0, "pong", n=n)
        raise AssertionError("never came true")

    async def drained(self) -> None:
        """All that was said down so far has reached the supervisor's socket."""
        assert self._writer is not None
        await self._writer.drain()

    def again_at_each_attach(self, say: Callable[[], None]) -> None:
        """Say something now and at each attach, as the control plane's sync does; all frames down are idempotent."""
        self._syncs.append(say)
        say()

    async def attached(self) -> None:
        await self.seen(0, "hello")

    # --- the socket -------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            hello = json.loads(await reader.readline())
            if hello["hello"] == "scope":
                self.joined.append(hello["channel"])
                writer.write(b"ok\n")
                await writer.drain()
            else:
                assert hello == {"hello": "supervisor", "protocol": 1}
                self._writer = writer
                self.hellos += 1
                await self._read(reader, writer)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        left = self.cut_after()
        while True:
            await self.reading.wait()
            data = await reader.read(65536)
            if not data:
                return
            if left is not None:
                data, left = data[:left], left - len(data)
            for channel, op, payload in frames.feed(data):
                if channel in self.streams:
                    self.streams[channel](payload)
                else:
                    self._frame(channel, op, json.loads(payload))
            async with self._changed:
                self._changed.notify_all()
            if left is not None and left <= 0:
                writer.transport.abort()
                return

    def _frame(self, channel: int, op: int, frame: dict[str, Any]) -> None:
        if channel == 0:
            self.said.append(frame)
            if frame["t"] == "hello" and self.attaching:
                self.attach()
                for sync in self._syncs:
                    sync()
            return
        if op == 0:
            self.said.append({**frame, "channel": channel})
            if frame["t"] == "output.locate":
                self.say(channel, {"t": "stored", "ops": [[op, self.sequences[channel, op]] for op, _ in frame["outputs"]]})
            return
        if op <= self.ops[channel]:
            self.duplicates += 1
            return
        assert op == self.ops[channel] + 1, f"op {op} after {self.ops[channel]}"
        self.ops[channel] = op
        self.stored[channel].append(frame)
        self.sequences[channel, op] = 1000 + op
        if self.on_stored is not None:
            self.on_stored(channel, op, frame)
        if self.acknowledging and frame.get("r"):
            if frame["t"] == "turn.output":
                self.say(channel, {"t": "stored", "ops": [[op, self.sequences[channel, op]]]})
            else:
                self.say(channel)
        elif self.acknowledging:
            asyncio.get_running_loop().call_later(0.02, self.say, channel)


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
