"""`helmr computer cp`: files between this machine and a Computer. SPEC 13, [C8]."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from helmr.cli.connection import connected
from helmr.cli.exits import REFUSED
from helmr.cli.terminal import Output
from helmr.protocol.archive import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmr.client import HelmrClient


@click.command()
@click.argument("source")
@click.argument("target")
@connected
async def cp(client: HelmrClient, output: Output, *, source: str, target: str) -> int | None:
    """Copy SOURCE to TARGET, one of which is on a Computer: `COMPUTER:PATH`. Files and folders; `-` is standard input or output.

    Into TARGET if that is a folder, else in its place. Modes are kept, owners are not: there it is the image's user, here you. Links stay
    links; those of a Computer that lead out of the copy are left out, and so are sockets and devices. Each file is replaced whole or not at
    all.
    """
    there, here = _place(source), _place(target)
    if (there is None) == (here is None):
        raise click.UsageError("One of SOURCE and TARGET is on a Computer: COMPUTER:PATH.")
    try:
        if there is not None:
            return await _from(client, output, *there, target)
        assert here is not None
        return await _to(client, output, source, *here)
    except (ArchiveError, OSError) as error:
        output.note(f"error: {error}")
        return REFUSED


async def _from(client: HelmrClient, output: Output, computer: str, path: str, target: str) -> int | None:
    if target == "-":
        if output.as_json:
            raise click.UsageError("--json and a file on standard output don't go together.")
        async for piece in client.computers.read_file(computer, path):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return None
    copied = await client.computers.download(computer, path, Path(os.getcwd(), target))
    return _tell(output, copied.bytes, copied.entries, copied.left_out, copied.more_left_out)


async def _to(client: HelmrClient, output: Output, source: str, computer: str, path: str) -> int | None:
    if source == "-":
        with tempfile.NamedTemporaryFile() as kept:  # so that it can be sent again
            await asyncio.to_thread(shutil.copyfileobj, sys.stdin.buffer, kept)
            kept.flush()
            done = await client.computers.write_file(computer, path, Path(kept.name))
    else:
        done = await client.computers.upload(computer, Path(source), path)
    return _tell(output, done.bytes, done.entries, done.left_out, done.more_left_out)


def _tell(output: Output, size: int, entries: int, left_out: Sequence[str], more: int) -> int | None:
    if output.as_json:
        output.object({"bytes": size, "entries": entries, "left_out": list(left_out), "more_left_out": more})
    for name in left_out:
        output.note(f"Left out: {name}")
    if more:
        output.note(f"Left out: {more} more")
    return REFUSED if left_out else None


def _place(text: str) -> tuple[str, str] | None:
    """Computer and path, or None for a path here: one with a slash before its first colon, or none."""
    computer, colon, path = text.partition(":")
    if not colon or not computer or "/" in computer or computer.startswith("."):
        return None
    return computer, path or "."
