"""Commands: run a program on a Computer, read and wait, read its output, cancel. SPEC [C8].

queued --begin--> starting --session.started--> running --> exited | cancelled | timed_out | system_failed   (docs/reference/commands.md)
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.core import Core, Effects, retry_of
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import commands
from helmr.protocol import jsontext
from helmr.protocol.commands import Command, CommandChunk, CommandLogs, CommandPage
from helmr.protocol.duration import duration_ms, format_duration
from helmr.protocol.errors import CommandNotFound, ComputerDeleting, ComputerNotFound, Forbidden, InvalidValue
from helmr.protocol.ids import CommandId, ComputerId, is_id, new_id
from helmr.protocol.limits import (
    COMMAND_ARGUMENT_BYTES,
    COMMAND_ARGUMENTS,
    COMMAND_ENVIRONMENT_BYTES,
    COMMAND_LONGEST_MS,
    COMMAND_STDIN_BYTES,
    COMMAND_TIMEOUT_MS,
    MIB,
)
from helmr.protocol.shapes import ErrorInfo
from helmr.protocol.states import COMMAND_ENDED
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import from_wire

LOG_PAGE_BYTES: Final = MIB
_LOOK_AGAIN_SECONDS: Final = 5.0
_RESERVED: Final = "HELMR_"


class Commands:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def execute(
        self,
        principal: Principal,
        computer_id: str,
        *,
        argv: Sequence[str],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reply:
        """Run a program, once, as soon as its Computer is awake; `stdin` is base64. It has no admission token and belongs to no Session.

        Raises `ComputerNotFound`, `ComputerDeleting`, `InvalidValue` for what is over a limit, `IdempotencyConflict`.
        """
        _require(principal, "computers.exec")
        asked = check_arguments(argv, env or {}, cwd)
        given, milliseconds = check_stdin(stdin), check_timeout(timeout)
        request = {"argv": list(argv), "cwd": cwd, "env": dict(env or {}), "stdin": stdin, "timeout": milliseconds}

        async def work(connection: Connection, effects: Effects) -> Reply:
            retry = retry_of(principal, "computers.exec", computer_id, idempotency_key, request)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            found = None
            if is_id(computer_id):
                found = await commands.computer_to_run_on(connection, id=computer_id, environment_id=principal.environment_id)
            if found is None or found["status"] == "deleted":
                raise ComputerNotFound()
            if found["status"] == "deleting":
                raise ComputerDeleting()
            command_id = new_id()
            await commands.insert_command(
                connection,
                id=command_id,
                environment_id=principal.environment_id,
                computer_id=computer_id,
                requested_by=jsontext.dumps(principal.by),
                argv=asked[0],
                cwd=cwd,
                env=asked[1],
                stdin=given,
                timeout_ms=milliseconds,
            )
            effects.command_places.add(command_id)
            receipt = jsontext.dumps({"id": command_id, "computer_id": computer_id})
            return await retry.remember(connection, receipt, None)

        return await self._core.write("exec_command", work)

    async def get(self, principal: Principal, command_id: str, wait_seconds: float = 0.0) -> Command:
        """A Command now, or once it has ended, or after the wait. Holds no connection while it waits."""
        _require(principal, "computers.read")
        row: Any = None

        async def look() -> bool:
            nonlocal row
            row = await self._find(principal, command_id)
            return row["status"] in COMMAND_ENDED

        await self._wait(command_id, wait_seconds, look)
        return shape(row)

    async def list(self, principal: Principal, computer_id: str, cursor: str | None = None, limit: int = 50) -> CommandPage:
        """A Computer's Commands, newest first. Raises `ComputerNotFound`."""
        _require(principal, "computers.read")
        before = decode_cursor(cursor) if cursor else None
        async with self._core.database.connection() as connection:
            known = is_id(computer_id) and await commands.computer_there(
                connection, id=computer_id, environment_id=principal.environment_id
            )
            if not known:
                raise ComputerNotFound()
            rows = await commands.list_commands(connection, computer_id=computer_id, before=before, count=limit + 1)
        items = tuple(shape(row) for row in rows[:limit])
        return CommandPage(items=items, next_cursor=encode_cursor(items[-1].id) if len(rows) > limit else None)

    async def logs(self, principal: Principal, command_id: str, after: int = 0, limit: int = 100, wait_seconds: float = 0.0) -> CommandLogs:
        """A page of the output after the chunk `after`: at once if there is any, else once there is some or nothing comes any more."""
        _require(principal, "computers.read")
        found: list[Any] = []
        complete = False

        async def look() -> bool:
            nonlocal found, complete
            row = await self._find(principal, command_id)
            async with self._core.database.connection() as connection:
                found = await commands.logs_after(connection, id=command_id, after=after, count=limit, bytes=LOG_PAGE_BYTES)
            ended = row["status"] in COMMAND_ENDED
            complete = ended and (not found or found[-1]["sequence"] >= row["last_op"])
            return bool(found) or ended

        await self._wait(command_id, wait_seconds, look)
        items = tuple(
            CommandChunk(
                sequence=row["sequence"],
                stream=row["stream"],
                at=row["at"],
                lost=row["lost"],
                data=base64.b64encode(row["data"]).decode(),
            )
            for row in found
        )
        return CommandLogs(items=items, next=items[-1].sequence if items else after, complete=complete)

    async def cancel(self, principal: Principal, command_id: str, idempotency_key: str | None = None) -> Reply:
        """End it: SIGTERM, ten seconds later SIGKILL. One that has ended, or is being ended, stays as it is. Raises `CommandNotFound`."""
        _require(principal, "computers.exec")

        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await self._find(principal, command_id, connection)
            retry = retry_of(principal, "commands.cancel", command_id, idempotency_key, {})
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            row = await commands.lock_command(connection, id=command_id)
            if row["status"] not in COMMAND_ENDED:
                await commands.mark_stop(connection, id=command_id, cause="cancelled")
                if row["status"] == "queued":
                    await commands.end_command(connection, id=command_id, status="cancelled", exit_code=None, exit_signal=None, error=None)
                effects.commands.add(command_id)
                effects.command_computers.add(str(row["computer_id"]))
            return await retry.remember(connection, jsontext.dumps({"id": command_id, "status": "accepted"}), None)

        return await self._core.write("cancel_command", work)

    async def _find(self, principal: Principal, command_id: str, connection: Connection | None = None) -> Any:
        """The row of a Command. Raises `CommandNotFound`, the same for unknown and foreign ids [O1]."""
        row: Any = None
        if is_id(command_id):
            if connection is not None:
                row = await commands.command_row(connection, id=command_id)
            else:
                async with self._core.database.connection() as own:
                    row = await commands.command_row(own, id=command_id)
        if row is None or str(row["environment_id"]) != principal.environment_id:
            raise CommandNotFound()
        return row

    async def _wait(self, command_id: str, seconds: float, look: Any) -> None:
        """Call `look` until it is true or the time is over: at each change of the Command, and now and then (I6)."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            future = self._core.hub.expect(command_id, command_id)
            try:
                if await look() or loop.time() >= end:
                    return
                await asyncio.wait({future}, timeout=min(_LOOK_AGAIN_SECONDS, max(0.0, end - loop.time())))
            finally:
                future.cancel()
                self._core.hub.forget(command_id, future)


def shape(row: Any) -> Command:
    """A row as its readers see it."""
    ended, signal = row["status"] in COMMAND_ENDED, row["exit_signal"]
    code = row["exit_code"] if signal is None else 128 + signal
    return Command(
        id=CommandId(str(row["id"])),
        computer_id=ComputerId(str(row["computer_id"])),
        status=row["status"],
        argv=tuple(jsontext.loads(row["argv"])),
        cwd=UNSET if row["cwd"] is None else row["cwd"],
        timeout=format_duration(row["timeout_ms"]),
        created_at=render.time_text(row["created_at"]),
        stdout_bytes=row["stdout_bytes"],
        stderr_bytes=row["stderr_bytes"],
        stopping=UNSET if ended or row["stop_cause"] is None else row["stop_cause"],
        exit_code=UNSET if code is None else code,
        signal=UNSET if signal is None else signal,
        error=UNSET if row["error"] is None else from_wire(ErrorInfo, jsontext.loads(row["error"]), "error"),
        started_at=UNSET if row["started_at"] is None else render.time_text(row["started_at"]),
        ended_at=UNSET if row["ended_at"] is None else render.time_text(row["ended_at"]),
    )


def check_arguments(argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> tuple[bytes, bytes]:
    """Arguments and environment as they are stored. Raises `InvalidValue`."""
    if not argv or not argv[0] or len(argv) > COMMAND_ARGUMENTS:
        raise InvalidValue(f"A Command has a program and 1 to {COMMAND_ARGUMENTS} arguments, the program counted.")
    if any("\0" in text for text in (*argv, *env, *env.values(), cwd or "")):
        raise InvalidValue("What a Command is started with holds no NUL.")
    arguments = jsontext.dumps(list(argv))
    if len(arguments) > COMMAND_ARGUMENT_BYTES:
        raise InvalidValue(f"The arguments of a Command are at most {COMMAND_ARGUMENT_BYTES} bytes of JSON.", hint="Send it on stdin.")
    for name in env:
        if not name or "=" in name or name.startswith(_RESERVED):
            raise InvalidValue(f"{name!r} can't be set: a name is not empty, has no '=', and does not begin with {_RESERVED}.")
    environment = jsontext.dumps(dict(env))
    if len(environment) > COMMAND_ENVIRONMENT_BYTES:
        raise InvalidValue(f"The environment of a Command is at most {COMMAND_ENVIRONMENT_BYTES} bytes of JSON.")
    if cwd is not None and not (cwd.startswith("/") and len(cwd.encode()) < 4096):
        raise InvalidValue("`cwd` is an absolute path of less than 4,096 bytes.")
    return arguments, environment


def check_stdin(stdin: str) -> bytes | None:
    """The bytes. Raises `InvalidValue`."""
    try:
        data = base64.b64decode(stdin, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue("`stdin` is no base64.") from None
    if len(data) > COMMAND_STDIN_BYTES:
        raise InvalidValue(f"A Command reads at most {COMMAND_STDIN_BYTES} bytes on stdin.")
    return data or None


def check_timeout(timeout: str | None) -> int:
    """Milliseconds. Raises `InvalidValue`."""
    milliseconds = COMMAND_TIMEOUT_MS if timeout is None else duration_ms(timeout, "timeout")
    if not 1 <= milliseconds <= COMMAND_LONGEST_MS:
        raise InvalidValue("A Command's timeout is 1ms to 24h.")
    return milliseconds


def _require(principal: Principal, permission: str) -> None:
    if principal.kind == "session":
        raise Forbidden("A Session runs programs itself: it asks for no Commands.")
    principal.require(permission)
