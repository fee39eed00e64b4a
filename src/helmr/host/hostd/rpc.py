"""Requests and replies as lines of JSON over a unix socket, some with a descriptor: the server's end of a connection."""

from __future__ import annotations

import array
import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import structlog

from helmr.host.hostd.failure import InvalidRequest, Refusal

LINE_BYTES: Final = 4 << 20
QUEUE_BYTES: Final = 8 << 20
"""Unsent bytes above which a client that doesn't read is cut off."""


_PEERGROUPS: Final = 59
"""`SO_PEERGROUPS`, which Python has no name for."""

_log = structlog.get_logger("helmr.hostd.rpc")


@dataclass(frozen=True, slots=True)
class Peer:
    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Who is at the other end, as the kernel noted it when the connection was made."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


def groups_of(connection: socket.socket) -> frozenset[int]:
    """The groups of who is at the other end, as the kernel noted them then; of more than 256 the first one alone."""
    _, _, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 1024)  # Python reads no more
    except OSError:
        return frozenset({gid})
    return frozenset({gid, *(group for (group,) in struct.iter_unpack("i", data))})


@dataclass(frozen=True, slots=True)
class WithDescriptor:
    """A reply that carries a descriptor of `passed`, which is closed here once it is sent."""

    value: Mapping[str, Any]
    passed: socket.socket


Handler = Callable[["Connection", str, Mapping[str, Any]], Awaitable["Mapping[str, Any] | WithDescriptor"]]
"""Answers a request; raises `Refusal` to refuse it."""


class Connection:
    """One client. `run` serves it until it closes; requests run side by side, each in a task that `spawn` owns."""

    def __init__(self, stream: socket.socket, handler: Handler, spawn: Callable[[Awaitable[None]], None]) -> None:
        stream.setblocking(False)
        self.peer = peer_of(stream)
        self._stream = stream
        self._handler = handler
        self._spawn = spawn
        self._queue: deque[tuple[bytes, socket.socket | None]] = deque()
        self._queued = 0
        self._wake = asyncio.Event()
        self._closed = False

    async def run(self) -> None:
        writer = asyncio.ensure_future(self._write())
        try:
            await self._read()
        finally:
            self._closed = True
            writer.cancel()
            await asyncio.wait([writer])
            self._drop_queue()
            self._stream.close()

    def notify(self, name: str, members: Mapping[str, Any]) -> None:
        """Queue a notification; dropped when the client is gone."""
        self._send({"n": name, **members})

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        held = b""
        while True:
            try:
                data = await loop.sock_recv(self._stream, 1 << 16)
            except ConnectionError:
                return
            if not data:
                return
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                self._spawn(self._serve(line))
            if len(held) > LINE_BYTES or self._closed:
                return

    async def _serve(self, line: bytes) -> None:
        number: Any = None
        try:
            request = _decode(line)
            number = request["id"]
            reply = await self._handler(self, request["m"], request)
        except Refusal as refusal:
            self._send({"id": number, "error": {"code": refusal.code, "message": refusal.message, **refusal.facts}})
            return
        except Exception as error:  # noqa: BLE001 - a bug in one request must not leave its client waiting for ever
            _log.error("request.broken", bytes=len(line), exc_info=error)  # what it says may be a Secret
            self._send({"id": number, "error": {"code": "internal", "message": f"hostd failed: {error!r}"}})
            return
        if isinstance(reply, WithDescriptor):
            self._send({"id": number, "ok": reply.value, "fd": True}, reply.passed)
        else:
            self._send({"id": number, "ok": reply})

    def _send(self, message: Mapping[str, Any], passed: socket.socket | None = None) -> None:
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if self._closed or self._queued + len(data) > QUEUE_BYTES:
            if passed is not None:
                passed.close()
            if not self._closed:
                self._closed = True
                self._stream.shutdown(socket.SHUT_RDWR)
            return
        self._queue.append((data, passed))
        self._queued += len(data)
        self._wake.set()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            while self._queue:
                data, passed = self._queue.popleft()
                self._queued -= len(data)
                try:
                    if passed is not None:
                        data = data[await self._send_first(data, passed) :]
                    await loop.sock_sendall(self._stream, data)
                except OSError:
                    # The reader hears the end of the same connection, and ends it.
                    return
                finally:
                    if passed is not None:
                        passed.close()
            self._wake.clear()

    async def _send_first(self, data: bytes, passed: socket.socket) -> int:
        """Send some of `data` together with the descriptor; how much."""
        loop = asyncio.get_running_loop()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [passed.fileno()]))]
        while True:
            try:
                return self._stream.sendmsg([data], rights)
            except BlockingIOError:
                ready: asyncio.Future[None] = loop.create_future()
                loop.add_writer(self._stream, _finish, ready)
                try:
                    await ready
                finally:
                    loop.remove_writer(self._stream)

    def _drop_queue(self) -> None:
        for _, passed in self._queue:
            if passed is not None:
                passed.close()
        self._queue.clear()


def _finish(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _decode(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidRequest("The line is no JSON.") from None
    if not isinstance(value, dict) or not isinstance(cast("dict[str, Any]", value).get("m"), str) or "id" not in value:
        raise InvalidRequest('A request is an object with "id" and "m".')
    return cast("dict[str, Any]", value)
