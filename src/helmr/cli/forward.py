"""`helmr computer forward`: ports of a Computer on this machine's loopback. SPEC 13, [C8], [C6]."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import click

from helmr.cli.connection import connected
from helmr.cli.terminal import Output
from helmr.protocol.errors import HelmrError

if TYPE_CHECKING:
    from helmr.client import ComputerStream, HelmrClient

_READ: Final = 64 * 1024
_LOOPBACK: Final = "127.0.0.1"


@click.command()
@click.argument("computer")
@click.argument("ports", nargs=-1, required=True, metavar="PORT[:LOCAL]...")
@connected
async def forward(client: HelmrClient, output: Output, *, computer: str, ports: tuple[str, ...]) -> None:
    """Listen on 127.0.0.1, and pass each connection on to PORT on COMPUTER's loopback, until Ctrl-C.

    LOCAL is PORT unless it is given; 0 chooses a free one. A sleeping Computer is woken by a connection, and sleeps under idle ones.
    """
    pairs = [_pair(text) for text in ports]
    async with AsyncExitStack() as stack:
        listening: list[dict[str, object]] = []
        for port, local in pairs:
            try:
                server = await asyncio.start_server(_passer(client, output, computer, port), _LOOPBACK, local)
            except OSError as error:
                raise click.UsageError(f"Can't listen on {_LOOPBACK}:{local}: {error.strerror}.") from None
            await stack.enter_async_context(server)
            listening.append({"port": port, "address": _LOOPBACK, "local": server.sockets[0].getsockname()[1]})
        if output.as_json:
            output.object({"forwards": listening})
        else:
            for each in listening:
                output.line(f"{each['address']}:{each['local']} -> {computer} port {each['port']}")
        await asyncio.get_running_loop().create_future()


def _pair(text: str) -> tuple[int, int]:
    first, colon, second = text.partition(":")
    if not first.isdecimal() or (colon and not second.isdecimal()) or not 0 < int(first) < 65536 or int(second or 0) > 65535:
        raise click.UsageError("A port is PORT or PORT:LOCAL, numbers to 65535.")
    return int(first), int(second) if colon else int(first)


def _passer(client: HelmrClient, output: Output, computer: str, port: int):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with await client.computers.connect(computer, port) as stream, asyncio.TaskGroup() as group:
                group.create_task(_up(reader, stream))
                group.create_task(_down(stream, writer))
        except HelmrError as error:
            output.note(f"Port {port}: {error}")
            writer.transport.abort()
        except BaseExceptionGroup as several:
            _, rest = several.split((HelmrError, OSError))
            output.note(f"Port {port}: {several.exceptions[0]}")
            writer.transport.abort()
            if rest is not None:
                raise rest from None
        finally:
            writer.close()

    return serve


async def _up(reader: asyncio.StreamReader, stream: ComputerStream) -> None:
    while data := await reader.read(_READ):
        await stream.write(data)
    await stream.write_eof()


async def _down(stream: ComputerStream, writer: asyncio.StreamWriter) -> None:
    while data := await stream.read():
        writer.write(data)
        await writer.drain()
    writer.write_eof()
