"""`host.sock` of one Computer: hostd listens, guests connect. See `docs/architecture.md`, "host.sock".

Whoever connects is hostile until the kernel has said which process it is; what it says counts for nothing but its own Computer [I4].
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.host.hostd.rpc import peer_of

HELLO_BYTES: Final = 4096
HELLO_SECONDS: Final = 10.0
CONNECTIONS: Final = 128
"""Unanswered connections at once; more wait in the kernel's backlog."""

_log = structlog.get_logger("helmr.hostd.runsocket")

IsSupervisor = Callable[[int], Awaitable[bool]]
"""Whether a pid is the Computer's pid 1; may wait until that is known."""
JoinScope = Callable[[int, int], Awaitable[None]]
"""Puts (channel, pid) into its scope; raises `LookupError` with the reason otherwise."""


class RunSocket:
    """Listens from `open` to `close`. Keeps the supervisor's newest stream until it is taken, and can cut off the one that was."""

    def __init__(self, folder: Path, *, is_supervisor: IsSupervisor, join_scope: JoinScope) -> None:
        self._folder = folder
        self._is_supervisor = is_supervisor
        self._join_scope = join_scope
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._parked: socket.socket | None = None
        self._arrived = asyncio.Event()
        self._handed: socket.socket | None = None

    def open(self) -> None:
        """Listen, in place of whoever did before. An existing stream of the guest is not touched by that."""
        path = self._folder / "host.sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bind_short(listener, path)
        # All users inside may connect; on the host the folder above keeps everybody else out.
        path.chmod(0o666)
        listener.listen(CONNECTIONS)
        listener.setblocking(False)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    async def close(self) -> None:
        """Stop listening and close what waits. A stream that was taken goes on. Idempotent."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._park(None)
        if self._handed is not None:
            self._handed.close()
            self._handed = None

    async def take(self, seconds: float) -> socket.socket:
        """The supervisor's stream for a worker, cutting off the worker that has it now. Raises `TimeoutError`."""
        self.cut_off()
        async with asyncio.timeout(seconds):
            while True:
                await self._arrived.wait()
                stream, self._parked = self._parked, None
                self._arrived.clear()
                if stream is None:
                    continue
                if _has_ended(stream):
                    stream.close()
                    continue
                # A copy is kept to be able to end the stream; it is the same connection, so ending it ends the worker's.
                self._handed = stream.dup()
                return stream

    def cut_off(self) -> None:
        """End the stream that was taken last: its supervisor connects again."""
        if self._handed is not None:
            with contextlib.suppress(OSError):
                self._handed.shutdown(socket.SHUT_RDWR)
            self._handed.close()
            self._handed = None

    def _accept(self) -> None:
        assert self._listener is not None
        if len(self._tasks) >= CONNECTIONS:
            asyncio.get_running_loop().remove_reader(self._listener)
            return
        try:
            stream, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        stream.setblocking(False)
        task = asyncio.ensure_future(self._greet(stream))
        self._tasks.add(task)
        task.add_done_callback(self._greeted)

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("host_sock.failed", folder=str(self._folder), error=repr(error))

    async def _greet(self, stream: socket.socket) -> None:
        kept = False
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await _read_hello(stream)
                pid = peer_of(stream).pid
                if hello.get("hello") == "supervisor" and await self._is_supervisor(pid):
                    self._park(stream)
                    kept = True
                elif hello.get("hello") == "scope" and type(hello.get("channel")) is int:
                    await self._join_scope(hello["channel"], pid)
                    await asyncio.get_running_loop().sock_sendall(stream, b"ok\n")
                else:
                    _log.warning("host_sock.refused", folder=str(self._folder), pid=pid)
        except LookupError as error:
            _log.warning("host_sock.scope_refused", folder=str(self._folder), reason=str(error))
            with contextlib.suppress(OSError):
                stream.send(b"no\n")
        except (TimeoutError, ConnectionError, ValueError) as error:
            _log.warning("host_sock.dropped", folder=str(self._folder), reason=str(error) or type(error).__name__)
        finally:
            if not kept:
                stream.close()

    def _park(self, stream: socket.socket | None) -> None:
        if self._parked is not None:
            self._parked.close()
        self._parked = stream
        if stream is not None:
            self._arrived.set()


def bind_short(listener: socket.socket, path: Path) -> None:
    """Bind to a path of any length: the kernel takes 107 bytes, and a state folder may be longer."""
    if len(os.fsencode(path)) < 100:
        listener.bind(str(path))
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    finally:
        os.close(descriptor)


async def _read_hello(stream: socket.socket) -> dict[str, Any]:
    """The first line and not a byte more: what follows are frames for the worker. Raises `ValueError` for no JSON object."""
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > HELLO_BYTES:
            raise ValueError("the first line is too long")
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(stream, _finish, ready)
        try:
            await ready
        finally:
            loop.remove_reader(stream)
        try:
            seen = stream.recv(HELLO_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        if not seen:
            raise ConnectionResetError("the guest closed before it said hello")
        line += stream.recv(seen.index(b"\n") + 1 if b"\n" in seen else len(seen))
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("the first line is no JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _finish(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _has_ended(stream: socket.socket) -> bool:
    try:
        return stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
