"""The running server of a data folder, as its pid file describes it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from helmr.protocol.errors import PostgresFailed

_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmaster:
    """What `postmaster.pid` said when it was read."""

    pid: int
    data: Path
    status: str

    @property
    def is_ready(self) -> bool:
        return self.status == "ready"

    @property
    def is_stopping(self) -> bool:
        return self.status == "stopping"

    def is_alive(self) -> bool:
        """Whether the process is there and is this folder's server: a pid is used again after a reboot."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return False
        if not sys.platform.startswith("linux"):
            return True
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][:1]
            return state != "Z" and os.path.samefile(f"/proc/{self.pid}/cwd", self.data)
        except FileNotFoundError:
            return False

    def is_another_program(self) -> bool:
        """Whether the pid surely belongs to something else now, so that the pid file would only keep PostgreSQL from starting."""
        try:
            return not os.path.samefile(f"/proc/{self.pid}/cwd", self.data)
        except OSError:
            return False

    def end(self, seconds: float) -> None:
        """Stop it, clients disconnected; at once, to recover later, when it does not end within `seconds`."""
        for number in (signal.SIGINT, signal.SIGQUIT):
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return
            if self._gone_within(seconds):
                return
        raise PostgresFailed(f"PostgreSQL (pid {self.pid}) does not end.")

    def wait(self, seconds: float) -> None:
        """Until the process is gone. Raises `PostgresFailed` after `seconds`."""
        if not self._gone_within(seconds):
            raise PostgresFailed(f"PostgreSQL (pid {self.pid}) is stopping and does not end.")

    async def gone(self) -> None:
        """Return when the process is gone, whoever ended it. A child that nobody reaped yet is gone."""
        if not sys.platform.startswith("linux"):
            while self.is_alive():  # noqa: ASYNC110 - these systems tell nobody but the parent
                await asyncio.sleep(_LOOK_SECONDS)
            return
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ended.set)
        try:
            if self.is_alive():
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _gone_within(self, seconds: float) -> bool:
        if sys.platform.startswith("linux"):
            try:
                descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return True
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                return bool(poll.poll(seconds * 1000))
            finally:
                os.close(descriptor)
        deadline = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.is_alive()


def read(data: Path) -> Postmaster | None:
    """The server that the pid file of `data` names, if there is one; it may be dead."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    if not lines or not lines[0].strip().lstrip("-").isdigit():
        return None
    return Postmaster(pid=abs(int(lines[0])), data=data, status=lines[7].strip() if len(lines) > 7 else "starting")
