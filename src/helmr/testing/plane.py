"""The control plane of a test, whole: `helmr.server.Server` over HTTP on a loopback port, in a thread of its own.

There it can be stopped, held and killed, while the test and the Sessions go on. A kill closes every descriptor of its event loop and never
lets the loop run again, so that for everybody else it is gone as a killed process is: connections end, the database rolls back what
was not committed. (The thread itself stays parked until the test process ends: a thread can't be killed.)
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
from pathlib import Path
from typing import Final

from helmr.control.listener import Listener, ListenerConfig
from helmr.server import Server, ServerConfig
from helmr.testing.deployment import ENVIRONMENT
from helmr.testing.threads import PATIENCE_SECONDS, LoopThread

WORKER_CREDENTIAL: Final = "hlmr_wk_of-this-test"
API_KEY: Final = "hlmr_sk_" + "t" * 43
POOL_SIZE: Final = 4

_dead: Final[list[object]] = []
"""What was killed, kept as it was: collecting it would close descriptors that are others' by now."""


class PlaneThread:
    """One control plane after the other on one database and one port. All methods are for the test's thread."""

    def __init__(self, dsn: str, blobs: Path) -> None:
        self._config = ServerConfig(
            dsn=dsn,
            blobs=blobs,
            worker_token=WORKER_CREDENTIAL,
            api_key=API_KEY,
            environment=ENVIRONMENT,
            pool_size=POOL_SIZE,
            saves=False,  # Sessions in threads have no Computer whose files could be saved
        )
        self._port = 0
        self._selector: selectors.BaseSelector
        self._own: set[int] = set()
        self._loop: LoopThread | None = None
        self._server: Server | None = None
        self.url = ""
        self.dead = threading.Event()
        """Set when it was killed, until `start`."""

    def start(self) -> None:
        """Serve, on the port of the one before. Raises what `Server.start` raises."""
        self.dead.clear()
        self._selector = selectors.DefaultSelector()
        self._loop = LoopThread("helmr-control-plane", asyncio.SelectorEventLoop(self._selector))
        self._loop.run(self._start())

    def stop(self, *, at_once: bool = False) -> None:
        """End it in an orderly way, as SIGTERM does; `at_once`: cut the requests under way. Idempotent; a killed one is left as it is."""
        loop, self._loop = self._loop, None
        server, self._server = self._server, None
        if loop is not None and not self.dead.is_set():
            if server is not None:
                loop.run(server.stop(at_once=at_once))
            loop.close()

    def kill(self) -> None:
        """End it as SIGKILL does, wherever it is. Idempotent."""
        if self._loop is not None and not self.dead.is_set():
            self._loop.post(self.die)
            self.dead.wait(PATIENCE_SECONDS)

    def die(self) -> None:
        """Never return, and let nothing of this control plane go on: for its own thread, at a fault point."""
        _dead.append((self._server, asyncio.all_tasks()))
        for descriptor in list(self._selector.get_map()):
            if isinstance(descriptor, int):
                os.close(descriptor)
        self.dead.set()
        threading.Event().wait()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    @property
    def loop(self) -> LoopThread:
        assert self._loop is not None
        return self._loop

    async def _start(self) -> None:
        listener = Listener(ListenerConfig(port=self._port))
        listener.bind()
        self.url = listener.url
        self._port = int(listener.url.rpartition(":")[2])
        self._server = Server(self._config, listener)
        await self._server.start()
