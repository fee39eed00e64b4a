"""Calls of gVisor's program. Each has nothing on stdin, a time-out, and leaves no process when it fails or is cancelled."""

from __future__ import annotations

import array
import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from helmr.host.sandbox.crowds import MARK
from helmr.host.sandbox.spawn import LaunchFailed, reap

SECONDS: Final = 30.0
NAME: Final = "computer"
"""Each sandbox has a state folder of its own, and there this name."""
FLAGS: Final = (
    "--platform=systrap",
    "--network=none",
    "--ignore-cgroups",
    "--overlay2=none",
    "--host-uds=none",
    "--cgroupfs",
)


class RunscFailed(LaunchFailed):
    """It ended with an error; the text ends with what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runsc:
    """One sandbox's calls. `root` is where gVisor keeps its state; `log` a file for what the program says."""

    binary: Path
    root: Path
    log: Path
    mark: str

    def argv(self, *words: str) -> tuple[str, ...]:
        """The whole command of a call."""
        return ("runsc", f"--root={self.root}", *FLAGS, *words)

    async def pause(self) -> None:
        await self._call("pause", NAME)

    async def resume(self) -> None:
        await self._call("resume", NAME)

    async def checkpoint(self, folder: Path) -> None:
        """Write the memory of a paused sandbox into an empty folder. It stays as it is, also when this fails."""
        # Without --leave-running a failed one would end it.
        await self._call("checkpoint", "--leave-running", "--compression=none", f"--image-path={folder}", NAME)

    async def execute(self, argv: Sequence[str], *, passed: int | None = None, seconds: float = SECONDS) -> int:
        """Run a program inside to its end; its exit code. `passed` is a descriptor that it has as its descriptor 7."""
        words = ["exec", *([f"--pass-fd={_PASSED}:7"] if passed is not None else []), NAME, *argv]
        return await self._run(words, passed, seconds)

    def failure(self, what: str, code: int) -> RunscFailed:
        """The error of a call that ended with `code`."""
        return RunscFailed(f"runsc {what} failed ({code}): {tail(self.log)}")

    async def _call(self, *words: str) -> None:
        code = await self._run(words, None, SECONDS)
        if code != 0:
            raise self.failure(words[0], code)

    async def _run(self, words: Sequence[str], passed: int | None, seconds: float) -> int:
        actions: list[tuple[object, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        if passed is not None:
            actions.append((os.POSIX_SPAWN_DUP2, passed, _PASSED))
        variables = {"PATH": os.defpath, MARK: self.mark}
        pid = os.posix_spawn(str(self.binary), self.argv(*words), variables, file_actions=actions, setsid=True)  # noqa: ASYNC221 - a fork only
        try:
            async with asyncio.timeout(seconds):
                return await reap(pid)
        except TimeoutError:
            await _kill(pid)
            raise RunscFailed(f"runsc {words[0]} did not end within {seconds:g} s: {tail(self.log)}") from None
        except BaseException:
            await asyncio.shield(_kill(pid))
            raise


_PASSED: Final = 3


def descriptors(*numbers: int) -> bytes:
    """Descriptors as a message carries them."""
    return array.array("i", numbers).tobytes()


def tail(log: Path) -> str:
    """The end of what was said."""
    if not log.exists():
        return "it said nothing."
    return log.read_bytes()[-1500:].decode("utf-8", "replace").strip() or "it said nothing."


async def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await reap(pid)


def is_call(pid: int) -> bool:
    """Whether a process is a launcher of ours or a call of gVisor's program, not what runs on after it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return words[0] == b"runsc" or any(b"gvisor.staging" in word for word in words)
