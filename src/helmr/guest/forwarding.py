"""The supervisor's forwarder: started once, and again whenever it ends. SPEC [C4]."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Final

from helmr.guest.polling import running_guest_loop
from helmr.protocol.egress import CHANNEL_WORD, CONNECTIONS, PROXY_PORT, PROXY_SOCKET, PROXY_VARIABLES

FIRST_PAUSE_SECONDS: Final = 0.1
LAST_PAUSE_SECONDS: Final = 5.0
STEADY_SECONDS: Final = 10.0
"""One that ran so long makes the next pause a first one."""

_CODE: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from helmr.guest.forwarder import main; main()"


class Forwarding:
    """Lives beside the supervisor, in no scope: Sessions come and go, and share it. What it may hold is bounded by itself.

    The port is the supervisor's from its start to its end: nobody inside gets it in a forwarder's place, and connections wait, few as they
    may be, while a new one starts.

    `host` is the path of hostd's socket, beside which the proxy's lies. Without one the way is a channel that is passed in: `adopt`.
    """

    def __init__(self, runtime: str, host: str | None, *, port: int = PROXY_PORT) -> None:
        self._runtime = runtime
        self._listener = socket.create_server(("127.0.0.1", port), backlog=CONNECTIONS)
        self._proxy = None if host is None else os.path.join(os.path.dirname(host), PROXY_SOCKET)
        self._passed: socket.socket | None = None
        self._giver: socket.socket | None = None
        """By which the present forwarder gets channels."""
        self._loop = running_guest_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._since = 0.0

    def start(self) -> None:
        """Spawn it, and tell all that is started here from now on where it listens."""
        os.environ.update(PROXY_VARIABLES)
        self._spawn()

    def adopt(self, passed: socket.socket) -> None:
        """The channel from now on. It belongs to the forwarder: if that ends, the channel ends, and hostd passes another."""
        if self._passed is not None:
            self._passed.close()
        self._passed = passed
        self._give()

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
        if self._process is not None:
            return
        if self._proxy is not None:
            self._start("--socket", self._proxy)
            return
        if self._giver is not None:
            self._giver.close()
        self._giver, taker = socket.socketpair()
        self._giver.setblocking(False)
        with taker:
            self._start("--descriptor", str(taker.fileno()), passing=(taker.fileno(),))
        self._give()

    def _give(self) -> None:
        """Hand the channel on; one for which there is nobody now waits for the next forwarder."""
        if self._passed is None or self._giver is None:
            return
        try:
            socket.send_fds(self._giver, [CHANNEL_WORD], [self._passed.fileno()])
        except OSError:
            return  # it has just ended
        self._passed.close()
        self._passed = None

    def _start(self, *way: str, passing: tuple[int, ...] = ()) -> None:
        self._since = self._loop.time()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CODE, self._runtime, "--listener", str(self._listener.fileno()), *way],
            stdin=subprocess.DEVNULL,
            pass_fds=(self._listener.fileno(), *passing),
            start_new_session=True,
            cwd="/",
        )
