"""`helmr computer shell`: a person's terminal, joined to one on a Computer. SPEC 13, [C8]."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import variables
from helmr.cli.terminal import Output

if TYPE_CHECKING:
    from helmr.client import HelmrClient, Shell

_READ: Final = 16 * 1024


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("computer")
@click.argument("argv", nargs=-1)
@click.option("--cwd", metavar="PATH", help="The working directory [default: that of the image].")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable for the shell; repeat for more.")
@connected
async def shell(
    client: HelmrClient, output: Output, *, computer: str, argv: tuple[str, ...], cwd: str | None, env: tuple[str, ...]
) -> int | None:
    """Open a shell on COMPUTER, which is woken for it; or run a program there on this terminal: `helmr computer shell ID -- htop`.

    What it writes goes to this terminal as it is. Its exit code is this command's. All that it started ends with it, and when the
    connection breaks. A Computer with an open shell stays awake.
    """
    if output.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("A shell is for a person at a terminal. Without one: `helmr computer exec --stdin`.")
    given = {"TERM": os.environ.get("TERM", "xterm"), **(variables(env) or {})}
    size = os.get_terminal_size(sys.stdout.fileno())
    opened = await client.computers.shell(computer, argv, rows=size.lines or 24, columns=size.columns or 80, cwd=cwd, env=given)
    async with opened:
        with _raw(sys.stdin.fileno()), _told_of_size(opened), _ended_by_signals():
            async with _typed(opened):
                while data := await opened.read():
                    await asyncio.to_thread(_write_all, sys.stdout.fileno(), data)
            return await opened.wait()


@contextmanager
def _raw(terminal: int) -> Generator[None]:
    """Every key is the other terminal's affair, Ctrl-C too. The terminal is as it was afterwards, whatever happens."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _told_of_size(opened: Shell) -> Generator[None]:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def changed() -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        task = loop.create_task(opened.resize(size.lines or 24, size.columns or 80))
        tasks.add(task)
        task.add_done_callback(_settled)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in tasks:
            task.cancel()


@contextmanager
def _ended_by_signals() -> Generator[None]:
    """Whoever ends this command gets the terminal back as it was."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _typed(opened: Shell) -> AsyncGenerator[None]:
    """What is typed here is typed there; no more is read while the other end doesn't take it."""
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    readable = asyncio.Event()

    async def pass_on() -> None:
        while True:
            loop.add_reader(terminal, readable.set)
            await readable.wait()
            loop.remove_reader(terminal)
            readable.clear()
            data = os.read(terminal, _READ)
            if not data:
                await opened.write_eof()
                return
            await opened.write(data)

    typing = asyncio.create_task(pass_on())
    typing.add_done_callback(_settled)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        typing.cancel()
        await asyncio.wait([typing])


def _settled(task: asyncio.Task[None]) -> None:
    """What ends a direction ends the stream too, whose reader says so."""
    if not task.cancelled():
        task.exception()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
