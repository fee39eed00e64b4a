"""The supervisor's forwarder: started once, and again whenever it ends. SPEC [C4]."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from helmr.guest.polling import running_guest_loop
from helmr.protocol.egress import PROXY_SOCKET, PROXY_VARIABLES

FIRST_PAUSE_SECONDS: Final = 0.1
LAST_PAUSE_SECONDS: Final = 5.0
STEADY_SECONDS: Final = 10.0
"""One that ran so long makes the next pause a first one."""

_CODE: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from helmr.guest.forwarder import main; main()"


class Forwarding:
    """Lives beside the supervisor, in no scope: Sessions come and go, and share it. What it may hold is bounded by itself."""

    def __init__(self, runtime: str, host: str) -> None:
        proxy = os.path.join(os.path.dirname(host), PROXY_SOCKET)
        self._arguments = [sys.executable, "-I", "-c", _CODE, runtime, "--socket", proxy]
        self._loop = running_guest_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._since = 0.0

    def start(self) -> None:
        """Spawn it, and tell all that is started here from now on where it listens."""
        os.environ.update(PROXY_VARIABLES)
        self._spawn()

    def ended(self, pid: int, status: int) -> bool:
        """Whether the dead child `pid` was the forwarder; then another follows."""
        if self._process is None or self._process.pid != pid:
            return False
        self._process.returncode = status
        self._process = None
        steady = self._loop.time() - self._since > STEADY_SECONDS
        self._pause = FIRST_PAUSE_SECONDS if steady else min(self._pause * 2, LAST_PAUSE_SECONDS)
        self._loop.call_later(self._pause, self._spawn)
        return True

    def _spawn(self) -> None:
        self._since = self._loop.time()
        self._process = subprocess.Popen(self._arguments, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/")
