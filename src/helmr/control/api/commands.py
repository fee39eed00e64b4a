"""Commands on Computers: run, list, read and wait, output, cancel. [C8]"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.presence import Draining
from helmr.control.api.requests import CommandLogQuery, CommandQuery, Nothing, PageQuery, RunCommand
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.commands import Command, CommandCancelReceipt, CommandLogs, CommandPage, CommandReceipt
from helmr.protocol.duration import duration_ms
from helmr.protocol.unset import UNSET, UnsetType


async def run(call: Call[Nothing, RunCommand]) -> Answer:
    body = call.body
    return await call.services.commands.execute(
        call.principal,
        call.path["computer_id"],
        argv=body.argv,
        cwd=given(body.cwd),
        env=given(body.env),
        stdin=given(body.stdin) or "",
        timeout=given(body.timeout),
        idempotency_key=call.idempotency_key,
    )


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    query = call.query
    return encoded(await call.services.commands.list(call.principal, call.path["computer_id"], given(query.cursor), query.limit))


async def read(call: Call[CommandQuery, Nothing]) -> Answer:
    def look(seconds: float) -> Coroutine[Any, Any, Any]:
        return call.services.commands.get(call.principal, call.path["command_id"], seconds)

    return encoded(await _waiting(call, call.query.wait, look))


async def logs(call: Call[CommandLogQuery, Nothing]) -> Answer:
    query = call.query

    def look(seconds: float) -> Coroutine[Any, Any, Any]:
        return call.services.commands.logs(call.principal, call.path["command_id"], query.after, query.limit, seconds)

    return encoded(await _waiting(call, query.wait, look))


async def cancel(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.commands.cancel(call.principal, call.path["command_id"], call.idempotency_key)


async def _waiting(call: Call[Any, Any], wait: str | UnsetType, look: Callable[[float], Coroutine[Any, Any, Any]]) -> Any:
    """What `look` gives, at once or after at most `wait`."""
    if wait is UNSET or call.exchange.head_only:
        return await look(0.0)
    try:
        return await call.while_present(look(duration_ms(wait) / 1000))
    except Draining:
        return await look(0.0)


COMMAND_ROUTES = (
    Route(
        method="POST",
        path="/v1/computers/{computer_id}/commands",
        name="run_command",
        summary="Run a program on a Computer, once it is awake",
        handler=run,
        tag="Commands",
        permission="computers.exec",
        body=RunCommand,
        takes="json",
        body_bytes=4 * 1024 * 1024,
        answer=CommandReceipt,
        status=201,
        write=True,
        errors=(errors.ComputerDeleting,),
    ),
    Route(
        method="GET",
        path="/v1/computers/{computer_id}/commands",
        name="list_commands",
        summary="List a Computer's Commands, the newest first",
        handler=list_,
        tag="Commands",
        permission="computers.read",
        query=PageQuery,
        answer=CommandPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/commands/{command_id}",
        name="get_command",
        summary="Read a Command, at once or when it has ended",
        handler=read,
        tag="Commands",
        permission="computers.read",
        query=CommandQuery,
        answer=Command,
    ),
    Route(
        method="GET",
        path="/v1/commands/{command_id}/logs",
        name="get_command_logs",
        summary="Read a page of what a Command has written, at once or when there is more",
        handler=logs,
        tag="Commands",
        permission="computers.read",
        query=CommandLogQuery,
        answer=CommandLogs,
    ),
    Route(
        method="POST",
        path="/v1/commands/{command_id}/cancel",
        name="cancel_command",
        summary="End a Command: SIGTERM, ten seconds later SIGKILL",
        handler=cancel,
        tag="Commands",
        permission="computers.exec",
        body=Nothing,
        takes="json",
        answer=CommandCancelReceipt,
        status=202,
        write=True,
    ),
)
