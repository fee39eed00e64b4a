"""`client.commands`: programs on Computers, by their own ids; `CommandRef` is a handle on one. SPEC 12, [C8]."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.commands import Command, CommandCancelReceipt, CommandLogs, CommandPage
from helmr.protocol.duration import Duration, duration_ms
from helmr.protocol.errors import RequestTimedOut, UnreadableAnswer
from helmr.protocol.ids import CommandId
from helmr.protocol.states import COMMAND_ENDED, CommandStream

POLL_SECONDS = 30.0
"""How long one request of a wait stays open on the server."""
_SLACK_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """Bytes of a stream, in the order in which they were read. The `lost` bytes before them are not to be had."""

    sequence: int
    stream: CommandStream
    data: bytes
    lost: int = 0


class CommandRef:
    """A Command by its id; making one sends nothing."""

    __slots__ = ("_transport", "id")

    def __init__(self, transport: Transport, command_id: str) -> None:
        self._transport = transport
        self.id = CommandId(command_id)

    def __repr__(self) -> str:
        return f"CommandRef({self.id})"

    async def get(self) -> Command:
        """The Command now. Raises `CommandNotFound`."""
        return await self._poll(None)

    async def wait(self, *, timeout: Duration | None = None) -> Command:
        """The Command once it has ended. Raises `RequestTimedOut` after `timeout`, which never cancels it.

        Waiting outlasts restarts of the server and broken connections, for `RetryPolicy.waiting_patience`.
        """
        if timeout is None:
            while True:
                found = await self._poll(POLL_SECONDS)
                if found.status in COMMAND_ENDED:
                    return found
        seconds = duration_ms(timeout, "timeout") / 1000
        end = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                while (left := end - time.monotonic()) > 0:
                    found = await self._poll(min(POLL_SECONDS, left))
                    if found.status in COMMAND_ENDED:
                        return found
        except TimeoutError:
            pass
        raise RequestTimedOut("The Command had not ended when the wait was over. It goes on.")

    async def output(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[CommandOutput]:
        """What the Command has written after the chunk `after`; with `follow`, until it has ended and all was read."""
        while True:
            page = await self._logs(after, POLL_SECONDS if follow else None)
            for item in page.items:
                try:
                    data = base64.b64decode(item.data, validate=True)
                except binascii.Error:
                    raise UnreadableAnswer("A Command's output is no base64.") from None
                yield CommandOutput(sequence=item.sequence, stream=item.stream, data=data, lost=item.lost)
            after = page.next
            if page.complete or (not follow and not page.items):
                return

    async def logs(self, *, after: int = 0, limit: int | None = None) -> CommandLogs:
        """A page of the output, as it is stored; what there is now."""
        query = {"after": after, "limit": limit}
        return read(CommandLogs, await self._transport.call("GET", self._path("/logs"), query=query))

    async def cancel(self, *, idempotency_key: str | None = None) -> CommandCancelReceipt:
        """End it: SIGTERM, ten seconds later SIGKILL. One that has ended stays as it is."""
        answer = await self._transport.write(self._path("/cancel"), {}, idempotency_key)
        return read(CommandCancelReceipt, answer)

    async def _poll(self, seconds: float | None) -> Command:
        query, limit = _held(seconds)
        return read(Command, await self._transport.call("GET", self._path(""), query=query, timeout=limit, waiting=seconds is not None))

    async def _logs(self, after: int, seconds: float | None) -> CommandLogs:
        query, limit = _held(seconds)
        query["after"] = after
        answer = await self._transport.call("GET", self._path("/logs"), query=query, timeout=limit, waiting=seconds is not None)
        return read(CommandLogs, answer)

    def _path(self, rest: str) -> str:
        return f"/v1/commands/{segment(self.id)}{rest}"


class Commands:
    """Programs run on Computers of the Environment."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def ref(self, id: str) -> CommandRef:
        """A handle on a Command; sends nothing."""
        return CommandRef(self._transport, id)

    async def get(self, id: str) -> Command:
        """A Command now. Raises `CommandNotFound`."""
        return await self.ref(id).get()

    async def list(self, computer_id: str, *, cursor: str | None = None, limit: int | None = None) -> CommandPage:
        """A page of a Computer's Commands, the newest first. Raises `ComputerNotFound`."""
        path = f"/v1/computers/{segment(computer_id)}/commands"
        return read(CommandPage, await self._transport.call("GET", path, query={"cursor": cursor, "limit": limit}))


def _held(seconds: float | None) -> tuple[dict[str, object], float | None]:
    """The query and the time limit of a request that the server may hold back for so long."""
    if seconds is None:
        return {}, None
    return {"wait": f"{max(1, round(seconds * 1000))}ms"}, seconds + _SLACK_SECONDS
