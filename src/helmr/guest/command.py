"""The scope of a Command in the supervisor: its output as numbered frames, its time, its end. SPEC [C8].

While the host is attached nothing is lost: when it takes no more, the pipes aren't read, and the program waits. While the host is away
the program goes on, and what exceeds `KEPT_BYTES` is dropped and counted: the next frame of that stream says how much is missing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from helmr.guest.scope import KEPT_BYTES, Upward
from helmr.protocol.frames import HEADER

STOP_SECONDS: Final = 10.0
"""What a Command has after its SIGTERM until all of its scope is killed."""

_READ: Final = 32 * 1024


@dataclass(slots=True, eq=False)
class Pipe:
    """One stream of the program's output."""

    stream: str
    descriptor: int
    open: bool = True
    reading: bool = False
    lost: int = 0
    """Bytes dropped since the last frame of this stream."""


class CommandScope:
    """What the supervisor asks of a scope (see `scope.Scope`). `on_kill` is to end all of it, `on_finished` comes with its complete end."""

    def __init__(
        self,
        channel: int,
        connection: socket.socket,
        outputs: Mapping[str, int],
        up: Upward,
        *,
        timeout: float,
        on_kill: Callable[[], None],
        on_finished: Callable[[], None],
    ) -> None:
        self.channel = channel
        self._pid: int | None = None
        self._timeout = timeout
        self.keeper: int | None = None
        self.doomed = False
        self.exit: dict[str, Any] | None = None
        self.failure: str | None = None
        self.sweeping = False
        self.finished = False
        self.last_op = 0
        self._connection = connection
        self._up, self._on_kill, self._on_finished = up, on_kill, on_finished
        self._loop = asyncio.get_running_loop()
        self._pipes = [Pipe(stream, descriptor) for stream, descriptor in outputs.items()]
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._acknowledged = 0
        self._unsent = memoryview(b"")
        self._stopping = False
        self._timers: list[asyncio.TimerHandle] = []
        connection.setblocking(False)
        for pipe in self._pipes:
            os.set_blocking(pipe.descriptor, False)
        self.resume()

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    @property
    def pid(self) -> int | None:
        return self._pid

    @pid.setter
    def pid(self, pid: int) -> None:
        """The program is there: its time begins."""
        if self._pid is None:
            self._timers.append(self._loop.call_later(self._timeout, self._time_over))
        self._pid = pid

    # --- up ---------------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Read what the program says unless the host, being there, takes no more of it."""
        wanted = not self._up.live or (self._kept_bytes < KEPT_BYTES and not self._up.congested)
        for pipe in self._pipes:
            if pipe.open and wanted != pipe.reading:
                pipe.reading = wanted
                if wanted:
                    self._loop.add_reader(pipe.descriptor, self._readable, pipe)
                else:
                    self._loop.remove_reader(pipe.descriptor)

    def kept(self) -> bytes:
        """Every frame that the host has not stored, in order."""
        return b"".join(frame for _, frame in self._kept)

    def acknowledge(self, op: int) -> None:
        """Drop what the host has stored."""
        if op > self._acknowledged:
            self._acknowledged = op
            while self._kept and self._kept[0][0] <= op:
                self._kept_bytes -= len(self._kept.popleft()[1])
            self.resume()

    def _readable(self, pipe: Pipe) -> None:
        self._read(pipe)
        self.resume()

    def _read(self, pipe: Pipe) -> bool:
        """Whether there may be more to read."""
        try:
            data = os.read(pipe.descriptor, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._close(pipe)
            return False
        if self._kept_bytes >= KEPT_BYTES and not self._up.live:
            pipe.lost += len(data)
        else:
            self._output(pipe, data)
        return True

    def _output(self, pipe: Pipe, data: bytes) -> None:
        lost = {"lost": pipe.lost} if pipe.lost else {}
        pipe.lost = 0
        self._say({"t": "command.output", "stream": pipe.stream, "data": base64.b64encode(data).decode(), **lost})

    def _say(self, message: Mapping[str, Any]) -> None:
        payload = json.dumps(message).encode()
        self.last_op += 1
        frame = HEADER.pack(len(payload), self.channel, self.last_op) + payload
        self._kept.append((self.last_op, frame))
        self._kept_bytes += len(frame)
        if self._up.live:
            self._up.send(frame)

    # --- down -------------------------------------------------------------------------------------------------------------

    def begin(self, launch: bytes, stdin: bytes) -> None:
        """Give the keeper what it starts the program with."""
        self._unsent = memoryview(launch + stdin)
        self._write()

    def forward(self, op: int, payload: bytes) -> None:
        """Take a frame of the host."""
        self.acknowledge(op)
        if payload:
            said = json.loads(payload)
            if said["t"] == "command.stop":
                self.stop(float(said["seconds"]))

    def flush(self) -> None:
        """Nothing waits to be written to the program."""

    def remind(self) -> None:
        """Nobody waits for acknowledgements."""

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = memoryview(b"")  # The keeper is gone, which is reported.
        if self._unsent:
            self._loop.add_writer(self._connection.fileno(), self._write)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection.fileno() >= 0:
            self._loop.remove_writer(self._connection.fileno())
            self._connection.close()

    # --- end --------------------------------------------------------------------------------------------------------------

    def stop(self, seconds: float) -> None:
        """Ask the program to end; kill all of its scope when it takes longer. Idempotent."""
        if self._stopping or self.exit is not None or self.sweeping:
            return
        self._stopping = True
        if self.pid is None:
            self._on_kill()
            return
        try:
            os.killpg(self.pid, signal.SIGTERM)
        except ProcessLookupError:
            _terminate(self.pid)  # It has no group of its own yet.
        self._timers.append(self._loop.call_later(min(seconds, STOP_SECONDS), self._on_kill))

    def _time_over(self) -> None:
        if not self._stopping and self.exit is None:
            self._say({"t": "command.timed_out"})
            self.stop(STOP_SECONDS)

    def ended(self, how: dict[str, Any]) -> None:
        """No process of the scope is left. What they said is read to its end, then `on_finished` is called."""
        if self.exit is not None:
            return
        self.exit = how
        self._release()
        self.finished = True
        self._on_finished()

    def forget(self) -> None:
        """Close what is open of it."""
        self._release()
        self._kept.clear()

    def _release(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._hang_up()
        for pipe in self._pipes:
            while pipe.open and self._read(pipe):
                continue
            self._close(pipe)

    def _close(self, pipe: Pipe) -> None:
        if pipe.open:
            pipe.open = False
            self._loop.remove_reader(pipe.descriptor)
            os.close(pipe.descriptor)
            if pipe.lost:
                self._output(pipe, b"")


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
