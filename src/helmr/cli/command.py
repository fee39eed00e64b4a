"""`helmr computer exec` and `logs`: programs on Computers. SPEC 13, [C8]."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import click

from helmr.cli.connection import connected
from helmr.cli.exits import REFUSED, TIMED_OUT
from helmr.cli.inputs import idempotency_option, variables
from helmr.cli.terminal import Output, escaped
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import Command, CommandOutput, CommandRef, HelmrClient

_CANCEL_SECONDS: Final = 10.0
_CANCELLED: Final = 143
"""As a shell says it of what SIGTERM ended."""


@click.command("exec", context_settings={"ignore_unknown_options": False})
@click.argument("computer")
@click.argument("argv", nargs=-1, required=True)
@click.option("--cwd", metavar="PATH", help="The working directory [default: that of the image].")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable for the program; repeat for more.")
@click.option("--stdin", "with_stdin", is_flag=True, help="Read standard input to its end first, and give it to the program.")
@click.option("--timeout", metavar="DURATION", help="End it after so long, like 90s or 2h [default: 5m].")
@click.option("--detach", is_flag=True, help="Print the Command's id, and don't wait for it.")
@idempotency_option
@connected
async def execute(
    client: HelmrClient,
    output: Output,
    *,
    computer: str,
    argv: tuple[str, ...],
    cwd: str | None,
    env: tuple[str, ...],
    with_stdin: bool,
    timeout: str | None,
    detach: bool,
    idempotency_key: str | None,
) -> int:
    """Run a program on COMPUTER, which is woken for it: `helmr computer exec ID -- ls -l`.

    Its output comes on standard output and standard error, its exit code is this command's. Ctrl-C cancels it. 124: its time was over.
    """
    stdin = await asyncio.to_thread(sys.stdin.buffer.read) if with_stdin else b""
    starting = asyncio.ensure_future(
        client.computers.exec(computer, argv, cwd=cwd, env=variables(env), stdin=stdin, timeout=timeout, idempotency_key=idempotency_key)
    )
    try:
        command = await asyncio.shield(starting)
        if detach:
            output.answer({"id": command.id, "computer_id": computer}, lambda: output.line(command.id))
            return 0
        if not output.as_json:
            await _show(command.output(), output)
        found = await command.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await (await starting).cancel()
        raise
    if output.as_json:
        output.object(found)
    return _exit_code(found, output)


@click.command()
@click.argument("command")
@click.option("--follow", is_flag=True, help="Go on until the Command has ended.")
@click.option("--after", type=click.IntRange(0), default=0, help="Begin after this chunk.")
@connected
async def logs(client: HelmrClient, output: Output, *, command: str, follow: bool, after: int) -> None:
    """Show what COMMAND has written, on standard output and standard error. With --json: one page as it is stored, bytes as base64."""
    found: CommandRef = client.commands.ref(command)
    if output.as_json and follow:
        raise click.UsageError("--json prints one page: it does not go with --follow.")
    if output.as_json:
        output.object(await found.logs(after=after))
    else:
        await _show(found.output(after=after, follow=follow), output)


async def _show(pieces: AsyncIterator[CommandOutput], output: Output) -> None:
    """Bytes exactly, to where they belong; on a terminal what could steer it is escaped."""
    texts = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in ("stdout", "stderr")}
    async for piece in pieces:
        if piece.lost:
            output.note(f"[{piece.lost} bytes of {piece.stream} are missing]")
        stream = sys.stdout if piece.stream == "stdout" else sys.stderr
        if stream.isatty():
            stream.write(escaped(texts[piece.stream].decode(piece.data).replace("\r\n", "\n")))
        else:
            stream.flush()
            stream.buffer.write(piece.data)
        stream.flush()


def _exit_code(found: Command, output: Output) -> int:
    match found.status:
        case "exited":
            return found.exit_code or 0
        case "timed_out":
            output.note(f"The Command was ended: its time of {found.timeout} was over.")
            return TIMED_OUT
        case "cancelled":
            output.note("The Command was cancelled.")
            return _CANCELLED
        case _:
            error = "it was lost" if found.error is UNSET else f"{found.error.message or found.error.code}"
            output.note(f"The Command failed: {error}")
            return REFUSED
