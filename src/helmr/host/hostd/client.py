"""hostd's client: one connection, requests side by side, notifications as they come."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from helmr.protocol.manifest import ImageManifest, TemplateManifest
from helmr.protocol.wire import to_wire

Notify = Callable[[str, Mapping[str, Any]], None]
"""Called in the event loop with the name and the members of each notification."""

_DESCRIPTORS: Final = 8
"""The most that come with one read."""


class HostdRefused(Exception):
    """hostd answered with an error: `code`, `message`, and what else it told in `facts`."""

    def __init__(self, code: str, message: str, facts: Mapping[str, Any] | None = None) -> None:
        self.code = code
        self.message = message
        self.facts = facts or {}
        super().__init__(f"{message} ({code})")


class HostdClient:
    """Made by `connect`. Every method raises `HostdRefused`, and `ConnectionError` once the connection is over."""

    def __init__(self, stream: socket.socket, notify: Notify | None) -> None:
        self._stream = stream
        self._notify = notify
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._descriptors: deque[int] = deque()
        self._sending = asyncio.Lock()
        self._over = asyncio.Event()
        self._held = b""

    @classmethod
    async def connect(cls, path: Path, notify: Notify | None = None) -> HostdClient:
        """Connect to `STATE/hostd.sock`. Raises `OSError` when none listens."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.setblocking(False)
        try:
            await _connect_short(stream, path)
        except BaseException:
            stream.close()
            raise
        client = cls(stream, notify)
        asyncio.get_running_loop().add_reader(stream, client._readable)
        return client

    async def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Any request by name; hostd's reply. `docs/architecture.md` names them."""
        if self._over.is_set():
            raise ConnectionResetError("The connection to hostd is over.")
        self._number += 1
        number = self._number
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        data = json.dumps({"id": number, "m": method, **params}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            # A line that is cut in the middle would spoil the connection: once begun it is sent to its end.
            await asyncio.shield(self._send(data))
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def info(self) -> Mapping[str, Any]:
        return await self.call("info", {})

    async def ensure_image(self, request: str, image: ImageManifest, blobs: Path) -> list[str]:
        """The keys of the image's layers, bottom first; output comes as `image.log` notifications."""
        reply = await self.call("image.ensure", {"request": request, "image": to_wire(image), "blobs": str(blobs)})
        return [str(key) for key in reply["layers"]]

    async def resolve_image(self, reference: str) -> str:
        """The digest of what `reference` names now."""
        return str((await self.call("image.resolve", {"reference": reference}))["digest"])

    async def collect_images(self, keep: Sequence[str], *, idle_seconds: float | None = None) -> Mapping[str, Any]:
        """Free the disk of layers that no Computer here uses and that are not in `keep`: `removed`, their keys, and `bytes`."""
        idle = {} if idle_seconds is None else {"idle_seconds": idle_seconds}
        return await self.call("image.collect", {"keep": list(keep), **idle})

    async def start(
        self,
        computer: str,
        fence: Any,
        *,
        environment: str,
        template: TemplateManifest,
        layers: Sequence[str] = (),
        protected: Sequence[Mapping[str, Any]] = (),
        files: Sequence[Mapping[str, Any]] = (),
    ) -> Mapping[str, Any]:
        """`state`, `pid`, and `paths` as the guest sees them. `protected`: the Secrets that its proxy exchanges, `files`: those that are
        files of it [X1]."""
        wanted: dict[str, Any] = {"computer": computer, "fence": fence, "environment": environment, "template": to_wire(template)}
        handed = {"protected_secrets": list(protected)} | ({"secret_files": list(files)} if files else {})
        return await self.call("computer.start", {**wanted, "layers": list(layers), **handed})

    async def protect(self, computer: str, fence: Any, protected: Sequence[Mapping[str, Any]]) -> None:
        """Its proxy exchanges these from now on, and no others."""
        await self.call("computer.protect", {"computer": computer, "fence": fence, "protected_secrets": list(protected)})

    async def attach(self, computer: str, fence: Any, protected: Sequence[Mapping[str, Any]] | None = None) -> socket.socket:
        """The supervisor's stream, non-blocking. The caller owns the socket. `protected`: as at its start; None: as they are."""
        wanted: dict[str, Any] = {"computer": computer, "fence": fence}
        reply = await self.call("computer.attach", wanted | ({} if protected is None else {"protected_secrets": list(protected)}))
        return cast("_Passed", reply).stream

    async def bundle(self, computer: str, digest: str, path: Path) -> str:
        """The bundle's folder inside the Computer."""
        return str((await self.call("computer.bundle", {"computer": computer, "digest": digest, "path": str(path)}))["inside"])

    async def stop(self, computer: str, fence: Any) -> int:
        return int((await self.call("computer.stop", {"computer": computer, "fence": fence}))["ended"])

    async def destroy(self, computer: str, fence: Any) -> int:
        return int((await self.call("computer.destroy", {"computer": computer, "fence": fence}))["ended"])

    async def freeze(self, computer: str, fence: Any) -> None:
        await self.call("computer.freeze", {"computer": computer, "fence": fence})

    async def thaw(self, computer: str, fence: Any) -> None:
        await self.call("computer.thaw", {"computer": computer, "fence": fence})

    async def hibernate(self, computer: str, fence: Any, key: str | None = None) -> Mapping[str, Any]:
        """Put it to sleep: `rung`, `seconds`. Memory on disk opens with `key` alone, 32 bytes in Base64."""
        return await self.call("computer.hibernate", {"computer": computer, "fence": fence, "key": key})

    async def wake(self, computer: str, fence: Any, key: str | None = None, files: Sequence[Mapping[str, Any]] = ()) -> Mapping[str, Any]:
        """`files`: the Secrets that it had as files at its start [X1]."""
        handed = {"secret_files": list(files)} if files else {}
        return await self.call("computer.wake", {"computer": computer, "fence": fence, "key": key, **handed})

    async def save(
        self, computer: str, fence: Any, *, spool: Path, keys: Mapping[str, str], previous: str | None = None, keep_frozen: bool = False
    ) -> Mapping[str, Any]:
        """Save its files into the worker's folder `spool`; `keys` are `data` and `names`, 32 bytes each in Base64 [C5].

        `previous` names the manifest of a save whose packs stay until this one is committed or given up: only what changed since is read
        and stored. Replies `manifest {name, size}`, `packs [{name, size}]` (new ones, in the spool as the manifest is), `files`, `bytes`,
        `changed_files`, `new_bytes`, `seconds`, `torn`, `refused`, `sockets`, `generation`, and `frozen`: whether all files are
        of one moment. With `keep_frozen` it stands still afterwards, as after `freeze`.
        """
        wanted: dict[str, Any] = {"computer": computer, "fence": fence, "spool": str(spool), "keys": dict(keys)}
        return await self.call("computer.save", {**wanted, "previous": previous, "keep_frozen": keep_frozen})

    async def restore(
        self,
        computer: str,
        fence: Any,
        *,
        environment: str,
        template: TemplateManifest,
        layers: Sequence[str],
        spool: Path,
        manifest: str,
        keys: Mapping[str, str],
    ) -> Mapping[str, Any]:
        """Make the Computer, stopped, with the files of a save, or give them to it if it is here and stopped. The manifest and its packs
        lie in `spool` under their names. Replies `state`, `generation`, `files`, `bytes`, `seconds`."""
        wanted: dict[str, Any] = {"computer": computer, "fence": fence, "environment": environment, "template": to_wire(template)}
        return await self.call(
            "computer.restore", {**wanted, "layers": list(layers), "spool": str(spool), "manifest": manifest, "keys": dict(keys)}
        )

    async def stats(self, computer: str) -> Mapping[str, Any]:
        return await self.call("computer.stats", {"computer": computer})

    async def create_scope(self, computer: str, channel: int) -> None:
        await self.call("scope.create", {"computer": computer, "channel": channel})

    async def end_scope(self, computer: str, channel: int) -> Mapping[str, Any]:
        return await self.call("scope.end", {"computer": computer, "channel": channel})

    async def lease(self, computers: Sequence[str], seconds: float) -> None:
        await self.call("lease", {"computers": list(computers), "seconds": seconds})

    async def shutdown(self, *, end_computers: bool) -> int:
        """hostd ends; with `end_computers` all its Computers' processes before. How many processes that were."""
        return int((await self.call("hostd.shutdown", {"end_computers": end_computers}))["ended"])

    async def wait_closed(self) -> None:
        """Return when the connection is over."""
        await self._over.wait()

    async def close(self) -> None:
        """End the connection: supervisors whose streams came by it are free for another worker. Idempotent."""
        self._end(ConnectionResetError("The connection to hostd was closed."))

    # --- details ---

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            try:
                await asyncio.get_running_loop().sock_sendall(self._stream, data)
            except OSError as error:
                self._end(error)

    def _readable(self) -> None:
        try:
            data, descriptors = _receive(self._stream)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        self._descriptors.extend(descriptors)
        if not data:
            self._end(ConnectionResetError("hostd closed the connection."))
            return
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        name = message.pop("n", None)
        if name is not None:
            if self._notify is not None:
                self._notify(str(name), message)
            return
        answer = self._waiting.get(message["id"])
        refused = message.get("error")
        if refused is not None:
            if answer is not None and not answer.done():
                facts = {key: value for key, value in refused.items() if key not in ("code", "message")}
                answer.set_exception(HostdRefused(str(refused["code"]), str(refused["message"]), facts))
            return
        reply: Mapping[str, Any] = message["ok"]
        if message.get("fd"):
            # Descriptors and the replies that announce them come in the same order.
            stream = socket.socket(fileno=self._descriptors.popleft())
            stream.setblocking(False)
            if answer is None or answer.done():
                stream.close()
                return
            reply = _Passed(reply, stream)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    def _end(self, error: OSError) -> None:
        if self._over.is_set():
            return
        self._over.set()
        asyncio.get_running_loop().remove_reader(self._stream)
        self._stream.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError(f"The connection to hostd is over: {error}"))


class _Passed(dict[str, Any]):
    """A reply that came with a stream."""

    def __init__(self, reply: Mapping[str, Any], stream: socket.socket) -> None:
        super().__init__(reply)
        self.stream = stream


def _receive(stream: socket.socket) -> tuple[bytes, array[int]]:
    """Bytes and descriptors. These are not for the processes that we start: a hostd outlives its worker, and would keep the streams of
    supervisors open after the worker's end. (`socket.recv_fds` has a parameter for that, and ignores it.)"""
    descriptors = array("i")
    space = socket.CMSG_SPACE(_DESCRIPTORS * descriptors.itemsize)
    data, ancillary, _, _ = stream.recvmsg(1 << 16, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, passed in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(passed[: len(passed) - len(passed) % descriptors.itemsize])
    return data, descriptors


async def _connect_short(stream: socket.socket, path: Path) -> None:
    """Connect to a path of any length: the kernel takes 107 bytes."""
    loop = asyncio.get_running_loop()
    if len(os.fsencode(path)) < 100:
        await loop.sock_connect(stream, str(path))
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        await loop.sock_connect(stream, f"/proc/self/fd/{descriptor}/{path.name}")
    finally:
        os.close(descriptor)
