"""Running a program so that a cancelled Turn leaves nothing behind."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OUTPUT_BYTES = 4 * 1024 * 1024

GONE_SECONDS = 5.0
"""A daemon that left the group may hold the output open for ever; the Session's end takes care of it."""


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    output: str
    seconds: float


async def run(argv: list[str], cwd: Path, *, seconds: float = 300.0, env: Mapping[str, str] | None = None, merge: bool = True) -> Finished:
    """Run a program to its end; standard error is part of the output unless `merge` is off (then it is dropped).

    Ends its whole process group when it takes longer than `seconds` (`TimeoutError`) or the caller is cancelled.
    """
    started = time.monotonic()
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if merge else asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    )
    try:
        child = await asyncio.shield(starting)
        async with asyncio.timeout(seconds):
            output, _ = await child.communicate()
    finally:
        await _end(await starting)  # a program that was just starting when the caller was cancelled is ended too
    return Finished(child.returncode or 0, output[:OUTPUT_BYTES].decode(errors="replace"), time.monotonic() - started)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Kill what is left of the process group, also what outlived its leader."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GONE_SECONDS):
            await child.wait()
