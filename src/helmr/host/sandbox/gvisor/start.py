"""Starting gVisor's launcher and learning the pid of the sandbox that it leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

from helmr.host.sandbox.gvisor.plan import GvisorPlan
from helmr.host.sandbox.gvisor.runsc import tail
from helmr.host.sandbox.spawn import LaunchFailed, reap, spawn_launcher

SECONDS: Final = 30.0


async def start(plan: GvisorPlan, plan_file: Path, log: Path, pid_file: Path, *, mark: str, secrets: int | None = None) -> int:
    """The pid of the sandbox, our child once its launcher has ended. Raises `LaunchFailed`; what was begun is the caller's to end."""
    await asyncio.to_thread(plan_file.write_bytes, plan.encode())
    read, write = os.pipe()
    try:
        launcher = spawn_launcher("helmr.host.sandbox.gvisor.staging", plan_file, write, log, mark=mark, secrets=secrets)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        # The launcher looks whether the other end is still there: a hostd that was killed meanwhile wants nothing started.
        async with asyncio.timeout(SECONDS):
            code = await reap(launcher)
    except BaseException as error:
        os.kill(launcher, signal.SIGKILL)
        await asyncio.shield(reap(launcher))
        if isinstance(error, TimeoutError):
            raise LaunchFailed(f"gVisor did not start the sandbox within {SECONDS:g} s: {tail(log)}") from None
        raise
    finally:
        os.close(read)
    if code != 0:
        raise LaunchFailed(f"The sandbox did not start ({code}): {tail(log)}")
    try:
        return int(pid_file.read_text())  # noqa: ASYNC240 - a small file
    except (FileNotFoundError, ValueError):
        raise LaunchFailed(f"The sandbox ended as soon as it was started: {tail(log)}") from None
