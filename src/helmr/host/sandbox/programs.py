"""Programs of the host that are asked something: each ends in time, or is ended."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program left when it ended. `code` below 0: the signal that ended it."""

    code: int
    out: bytes
    errors: bytes

    @property
    def complaint(self) -> str:
        """The last line of what it said of errors."""
        return self.errors.decode("utf-8", "replace").strip().rpartition("\n")[2]


async def ask(*argv: str, seconds: float, environment: Mapping[str, str] | None = None, folder: str | None = None) -> Answer:
    """Run a program that reads nothing. It has ended when this returns or raises: `TimeoutError`, `OSError` where it can't be started.

    `environment`: its own variables; hostd's where none are given.
    """
    env = None if environment is None else dict(environment)
    process = await asyncio.create_subprocess_exec(*argv, env=env, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(seconds):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    assert process.returncode is not None
    return Answer(code=process.returncode, out=out, errors=errors)
