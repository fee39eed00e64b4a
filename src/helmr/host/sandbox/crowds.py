"""Processes handled one by one where no cgroup holds them together: found anew in each round, until none is left to handle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from helmr.host.sandbox.identity import identify, parents, state_of

MARK: Final = "HELMR_SANDBOX"
"""Variable in the environment of a Computer's pid 1, and of what inherits it: tells orphans and unknown runs."""
_SETTLE_SECONDS: Final = 10.0

Members = Callable[[], set[int]]


class CrowdFailed(Exception):
    """Processes did not end, stop or go on in the time allowed."""


async def kill(members: Members) -> int:
    """SIGKILL until nothing is left, also what forks meanwhile; how many there were."""
    return await _repeat(lambda: {pid for pid in members() if identify(pid) is not None}, signal.SIGKILL)


async def stop(members: Members) -> None:
    """SIGSTOP until nothing runs."""
    await _repeat(lambda: {pid for pid in members() if state_of(pid) not in ("T", "Z", None)}, signal.SIGSTOP)


async def go_on(members: Members) -> None:
    await _repeat(lambda: {pid for pid in members() if state_of(pid) == "T"}, signal.SIGCONT)


def marks() -> set[str]:
    """The marks that live processes of this host bear, as far as we may look."""
    name = f"{MARK}=".encode()
    found: set[str] = set()
    for pid in parents():
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        found.update(word[len(name) :].decode(errors="replace") for word in words if word.startswith(name))
    return found


def marked(mark: str) -> set[int]:
    """The live processes of this host, as far as we may look, whose environment bears a Computer's mark."""
    wanted = f"{MARK}={mark}".encode()
    found: set[int] = set()
    for pid in parents():
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return {pid for pid in found if identify(pid) is not None}


def mounting(prefix: str) -> set[int]:
    """bubblewrap's own live processes whose command line names a path that begins with `prefix`.

    One that waits for a parent that was killed waits for ever, and shows no environment to know it by.
    """
    wanted = prefix.encode()
    found: set[int] = set()
    for pid in parents():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if os.path.basename(words[0]) == b"bwrap" and any(word.startswith(wanted) for word in words):
            found.add(pid)
    return {pid for pid in found if identify(pid) is not None}


async def _repeat(left: Members, number: signal.Signals) -> int:
    handled: set[int] = set()
    pause = 0.001
    try:
        async with asyncio.timeout(_SETTLE_SECONDS):
            while found := left():
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                handled |= found
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.05)
    except TimeoutError:
        raise CrowdFailed(f"{len(left())} processes did not take {number.name} within {_SETTLE_SECONDS:g} s.") from None
    return len(handled)
