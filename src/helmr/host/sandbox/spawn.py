"""Starting a launcher and learning the pid of what it became, without a fork of the daemon's own process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from helmr.host.sandbox.crowds import MARK
from helmr.host.sandbox.plan import LaunchPlan

LAUNCH_SECONDS = 20.0

SOURCE: Final = str(Path(__file__).resolve().parents[3])
"""The folder that holds our package, for processes of ours that start without site-packages."""
_MAIN: Final = """\
import sys
path = sys.argv[1]
for name in ("helmr", "helmr.host", "helmr.host.sandbox", "helmr.host.sandbox.gvisor"):
    module = sys.modules[name] = type(sys)(name)
    module.__path__ = [path + "/" + name.replace(".", "/")]
__import__(sys.argv[2], fromlist=["main"]).main()
"""
# The packages are stood in for, so that what their own modules import costs no cold start anything.


class LaunchFailed(Exception):
    """The sandbox did not come up; the message ends with what the launcher said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    pid: int
    """Pid 1 of the sandbox, as the host numbers it."""
    monitor: int
    """Our child: bubblewrap's outer process, which ends with the sandbox and knows its exit code."""


async def launch(plan: LaunchPlan, *, plan_file: Path, log: Path | int, secrets: int | None = None) -> Launched:
    """Start a sandbox, with `secrets` of `handed.passed`. It outlives this process. Raises `LaunchFailed`; nothing of it runs then."""
    plan_file.write_bytes(plan.encode())  # noqa: ASYNC240 - a stat or a small file, nothing that blocks
    read, write = os.pipe()
    try:
        # Whatever is under way when we are killed can be found by the next hostd.
        mark = plan.environment.get(MARK)
        monitor = spawn_launcher("helmr.host.sandbox.launch", plan_file, write, log, mark=mark, secrets=secrets)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        said = await _read_all(read, LAUNCH_SECONDS)
    except BaseException as error:
        # Until it has told its pid it waits for nobody: bubblewrap's child ends when its parent does.
        os.kill(monitor, signal.SIGKILL)
        await asyncio.shield(reap(monitor))
        if isinstance(error, TimeoutError):
            raise LaunchFailed(f"bubblewrap said nothing within {LAUNCH_SECONDS:g} s. {_tail(log)}") from None
        raise
    finally:
        os.close(read)
    pid = _child_pid(said)
    if pid is None:
        await reap(monitor)
        raise LaunchFailed(f"The sandbox did not start. {_tail(log)}")
    return Launched(pid=pid, monitor=monitor)


def spawn(
    argv: Sequence[str], variables: Mapping[str, str], *, log: Path | int, stdin: Path = Path("/dev/null"), descriptors: Sequence[int] = ()
) -> int:
    """Start a program in a session of its own, with `log` as its output and `descriptors` as those from 3 on; its pid, to be reaped by us.

    No fork of this process runs any Python, and nothing of it ends the program when this process ends. Raises `OSError`.
    """
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, str(stdin), os.O_RDONLY, 0)]
    if isinstance(log, int):
        actions += [(os.POSIX_SPAWN_DUP2, log, 1)]
    else:
        actions += [(os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)]
    actions += [(os.POSIX_SPAWN_DUP2, 1, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, descriptor, place) for place, descriptor in enumerate(descriptors, 3)]
    return os.posix_spawn(argv[0], list(argv), dict(variables), file_actions=actions, setsid=True)


async def reap(pid: int) -> int:
    """Wait for our child `pid`; its exit code, negative for a signal. -1000 when somebody else has reaped it."""
    await when_ended(pid)
    code = reaped(pid)
    return -1000 if code is None else code


def reaped(pid: int) -> int | None:
    """The exit code of an ended child of ours, negative for a signal; None for others, and for one that has been reaped."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


async def when_ended(pid: int) -> None:
    """Return when the process `pid` has ended (a zombie has)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await readable(descriptor)
    finally:
        os.close(descriptor)


def spawn_launcher(module: str, plan_file: Path, information: int, log: Path | int, *, mark: str | None, secrets: int | None = None) -> int:
    """Start a launcher of ours, its plan on stdin, `information` as its descriptor 3, `secrets` as 4; its pid. Raises `OSError`."""
    argv = (sys.executable, "-I", "-S", "-c", _MAIN, SOURCE, module)
    variables = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"} | ({MARK: mark} if mark is not None else {})
    return spawn(argv, variables, log=log, stdin=plan_file, descriptors=[information] if secrets is None else [information, secrets])


async def _read_all(descriptor: int, seconds: float) -> bytes:
    found = b""
    os.set_blocking(descriptor, False)
    async with asyncio.timeout(seconds):
        while True:
            await readable(descriptor)
            piece = os.read(descriptor, 4096)
            if not piece:
                return found
            found += piece


async def readable(descriptor: int) -> None:
    """Return once `descriptor` is readable; a pidfd is when its process is gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, finish)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _child_pid(said: bytes) -> int | None:
    try:
        return int(json.loads(said)["child-pid"])
    except (ValueError, KeyError, TypeError):
        return None


def _tail(log: Path | int) -> str:
    if isinstance(log, int):
        return "It said:"  # by the pipe of the caller, who adds it
    if not log.exists():
        return "It left no log."
    text = log.read_bytes()[-2000:].decode("utf-8", "replace").strip()
    return f"It said: {text}" if text else "It said nothing."
