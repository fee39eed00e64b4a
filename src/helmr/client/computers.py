"""`client.computers`: the Computers of the Environment. SPEC 12, [C1], [C6], [C9]."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from helmr.client.commands import CommandRef
from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.commands import CommandReceipt
from helmr.protocol.duration import Duration, duration_ms
from helmr.protocol.saves import SavePage, SaveReceipt
from helmr.protocol.shapes import Computer, ComputerCreateReceipt, ComputerPage, ComputerReceipt, SessionPage
from helmr.protocol.states import ComputerStatus
from helmr.protocol.unset import UNSET


class Computers:
    """Computers by their ids. Receipts say where a Computer is or goes, not that it is there."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, template: str, *, key: str | None = None, idempotency_key: str | None = None) -> ComputerCreateReceipt:
        """A Computer of a Template of the current Deployment, for Sessions to be created on; it stays until `delete` [C1].

        `key` is unique within its Template until the Computer is deleted. Raises `TemplateNotFound`, `NoCurrentDeployment`,
        `ComputerKeyConflict` with the occupant's `computer_id`.
        """
        body: dict[str, Any] = {"template": template} if key is None else {"template": template, "key": key}
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
