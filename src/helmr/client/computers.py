"""`client.computers`: the Computers of the Environment. SPEC 12, [C1], [C6], [C9]."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from helmr.client.commands import CommandRef
from helmr.client.copying import packing, unpacking
from helmr.client.reading import read
from helmr.client.streams import ComputerStream, Shell, open_connection, open_shell
from helmr.client.transport import Body, Transport, segment, translated
from helmr.protocol.archive import Copied
from helmr.protocol.commands import CommandReceipt, CopyReceipt
from helmr.protocol.duration import Duration, duration_ms
from helmr.protocol.saves import SavePage, SaveReceipt
from helmr.protocol.secrets import SecretBinding
from helmr.protocol.shapes import Computer, ComputerCreateReceipt, ComputerPage, ComputerReceipt, SessionPage
from helmr.protocol.states import ComputerStatus
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire

_SILENCE_SECONDS = 300.0
_COPY_SECONDS = 24 * 3600.0


class Computers:
    """Computers by their ids. Receipts say where a Computer is or goes, not that it is there."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self, template: str, *, key: str | None = None, secrets: Sequence[SecretBinding] = (), idempotency_key: str | None = None
    ) -> ComputerCreateReceipt:
        """A Computer of a Template of the current Deployment, for Sessions to be created on; it stays until `delete` [C1].

        `key` is unique within its Template until the Computer is deleted; `secrets` (`helmr.secret(...)`) come beside the Template's, or in
        the place of those of the same variable or file. Raises `TemplateNotFound`, `NoCurrentDeployment`, `SecretNotFound`,
        `ComputerKeyConflict` with the occupant's `computer_id`.
        """
        body: dict[str, Any] = {"template": template} if key is None else {"template": template, "key": key}
        if secrets:
            body["secrets"] = [{name: value for name, value in to_wire(binding).items() if value} for binding in secrets]
        return read(ComputerCreateReceipt, await self._transport.write("/v1/computers", body, idempotency_key))

    async def get(self, id: str) -> Computer:
        """A Computer now, a deleted one too. Raises `ComputerNotFound`."""
        return read(Computer, await self._transport.call("GET", f"/v1/computers/{segment(id)}"))

    async def list(
        self,
        *,
        status: Sequence[ComputerStatus] = (),
        template: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> ComputerPage:
        """A page of Computers, the newest first: without a `status` those that aren't deleted. `limit` 1-100, 50 when omitted."""
        query = {"status": list(status), "template": template, "cursor": cursor, "limit": limit}
        return read(ComputerPage, await self._transport.call("GET", "/v1/computers", query=query))

    async def members(self, id: str, *, cursor: str | None = None, limit: int | None = None) -> SessionPage:
        """A page of a Computer's Sessions, closed ones too, the newest first."""
        query = {"cursor": cursor, "limit": limit}
        return read(SessionPage, await self._transport.call("GET", f"/v1/computers/{segment(id)}/members", query=query))

    async def hibernate(self, id: str, *, idempotency_key: str | None = None) -> ComputerReceipt:
        """Put it to sleep now; the next Turn or `wake` wakes it. Raises `ComputerBusy` when somebody works on it [C6]."""
        return read(ComputerReceipt, await self._transport.write(f"/v1/computers/{segment(id)}/hibernate", {}, idempotency_key))

    async def wake(self, id: str, *, idempotency_key: str | None = None) -> ComputerReceipt:
        """Have it run. Without a Turn it sleeps again after its Agents' `hibernate_after_idle`. Raises `CapacityUnavailable`."""
        return read(ComputerReceipt, await self._transport.write(f"/v1/computers/{segment(id)}/wake", {}, idempotency_key))

    async def recover(self, id: str, *, idempotency_key: str | None = None) -> ComputerReceipt:
        """Try again one that failed, with the files that it has; its `error` says why it had. Raises `CapacityUnavailable`.

        Nothing changes on one on which nothing failed. Holds of its Sessions stay.
        """
        return read(ComputerReceipt, await self._transport.write(f"/v1/computers/{segment(id)}/recover", {}, idempotency_key))

    async def save(self, id: str, *, idempotency_key: str | None = None) -> SaveReceipt:
        """Save its files now; `saves` shows what became of it. Raises `SaveUnavailable` when it is nowhere or on its way [C5]."""
        return read(SaveReceipt, await self._transport.write(f"/v1/computers/{segment(id)}/save", {}, idempotency_key))

    async def saves(self, id: str, *, cursor: str | None = None, limit: int | None = None) -> SavePage:
        """A page of a Computer's saves, the newest first."""
        query = {"cursor": cursor, "limit": limit}
        return read(SavePage, await self._transport.call("GET", f"/v1/computers/{segment(id)}/saves", query=query))

    async def delete(self, id: str, *, idempotency_key: str | None = None) -> ComputerReceipt:
        """Delete it with all its files, for good; again changes nothing. Raises `ComputerBusy` while a Session on it isn't closed [C9].

        The receipt says `deleting` until nothing of it is left on its host.
        """
        return read(ComputerReceipt, await self._transport.write(f"/v1/computers/{segment(id)}", UNSET, idempotency_key, method="DELETE"))

    async def shell(
        self,
        id: str,
        argv: Sequence[str] = (),
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Shell:
        """Open a shell, as soon as the Computer is awake: that of the image's user, or `argv`, on a terminal of its own [C8].

        It ends, with all that it started, when the connection does; its Computer stays awake meanwhile.
        """
        opening: dict[str, Any] = {"rows": rows, "columns": columns}
        if argv:
            opening["argv"] = list(argv)
        if cwd is not None:
            opening["cwd"] = cwd
        if env is not None:
            opening["env"] = dict(env)
        return await open_shell(self._transport, f"/v1/computers/{segment(id)}/shell", opening)

    async def connect(self, id: str, port: int) -> ComputerStream:
        """Connect to a port on the Computer's loopback, as soon as it is awake. Raises `PortRefused` when nothing listens there [C8]."""
        return await open_connection(self._transport, f"/v1/computers/{segment(id)}/forward", port)

    async def read_file(self, id: str, path: str) -> AsyncIterator[bytes]:
        """A file's bytes, piece by piece. Raises `PathNotFound`, `PathRefused`, and `ConnectionFailed` for one that broke off."""
        async for piece in self._read(id, path, "file"):
            yield piece

    async def write_file(self, id: str, path: str, content: bytes | Path, *, mode: int | None = None) -> CopyReceipt:
        """Write a file, or replace it: whole, or not at all. Without `mode` an old file keeps its own.

        Raises `PathNotFound`, `PathRefused`.
        """
        return await self._write(id, {"path": path, "form": "file", "mode": mode}, content)

    async def download(self, id: str, path: str, target: Path) -> Copied:
        """Copy a file or folder of the Computer to `target`, or into it if that is a folder; links stay links, those that lead out of the
        copy are left out. Raises `PathNotFound`, `PathRefused`, `ArchiveError`, `OSError`."""
        if await asyncio.to_thread(target.is_dir):
            target = target / (posixpath.basename(posixpath.normpath(path)) or "root")
        async with contextlib.aclosing(self._read(id, path, "tree")) as pieces:
            return await unpacking(pieces, target)

    async def upload(self, id: str, source: Path, path: str) -> CopyReceipt:
        """Copy a file or folder to `path` on the Computer, or into it if that is a folder; each file is replaced whole or not at all.

        Raises `PathNotFound`, `PathRefused`, `OSError`.
        """
        source = await asyncio.to_thread(source.absolute)
        await asyncio.to_thread(source.lstat)
        query = {"path": path, "form": "tree", "name": source.name or "root"}
        return await self._write(id, query, lambda: packing(source, Copied()))

    async def _read(self, id: str, path: str, form: str) -> AsyncGenerator[bytes]:
        url = f"/v1/computers/{segment(id)}/files"
        response = await self._transport.open_stream(
            url, query={"path": path, "form": form}, headers={"Accept": "*/*"}, silence=_SILENCE_SECONDS, backoff=self._transport.backoff()
        )
        async with response:
            try:
                async for piece in response.content.iter_any():
                    yield piece
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                raise translated(error, self._transport.target.url) from error

    async def _write(self, id: str, query: Mapping[str, Any], content: Body) -> CopyReceipt:
        url = f"/v1/computers/{segment(id)}/files"
        answer = await self._transport.call("PUT", url, query=query, content=content, timeout=_COPY_SECONDS)
        return read(CopyReceipt, answer)

    async def exec(
        self,
        id: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> CommandRef:
        """Run a program on it, as soon as it is awake; `argv` is the program and its arguments, and no shell takes part [C8].

        `timeout` is by default five minutes and at most a day. Raises `ComputerNotFound`, `ComputerDeleting`, `InvalidValue`.
        """
        if isinstance(argv, str):
            raise TypeError("`argv` is a list of texts: the program and its arguments.")
        body: dict[str, Any] = {"argv": list(argv)}
        if cwd is not None:
            body["cwd"] = cwd
        if env is not None:
            body["env"] = dict(env)
        if stdin:
            body["stdin"] = base64.b64encode(stdin).decode()
        if timeout is not None:
            body["timeout"] = f"{duration_ms(timeout, 'timeout')}ms"
        answer = await self._transport.write(f"/v1/computers/{segment(id)}/commands", body, idempotency_key)
        return CommandRef(self._transport, read(CommandReceipt, answer).id)
