"""The HTTP listener of a control plane: the socket, and the server that speaks on it.

The socket is taken before anything else starts, so a port in use is found at once, and by its own error.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn

from helmr.control.api.connection import Connection, LinkConnection
from helmr.protocol.errors import PortInUse, SetupError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LINK_MESSAGE_BYTES: Final = 16 << 20
"""The longest WebSocket message that a worker may send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    stop_seconds: float = 5.0
    """How long requests under way may take after `stop`."""


class Listener:
    """A Service: `bind`, `start`, `stop`."""

    def __init__(self, config: ListenerConfig) -> None:
        self._config = config
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    def bind(self) -> None:
        """Take the port. Raises `PortInUse`, or `SetupError` for an address that is none of this machine's."""
        if self._socket is not None:
            return
        host, port = self._config.host, self._config.port
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    # Inherited by what is accepted: a peer that takes nothing for a minute is given up by the kernel.
                    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
                listening.bind(address)
                listening.listen(2048)
                listening.setblocking(False)
            except OSError:
                listening.close()
                raise
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"Another program listens on {host}:{port}.") from error
            raise SetupError(f"Can't listen on {host}:{port}: {error.strerror}.") from error
        self._socket = listening

    @property
    def url(self) -> str:
        """Where it listens, without a final slash; after `bind`."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self, app: ASGIApp) -> None:
        """Serve `app`; returns once it does."""
        self.bind()
        assert self._socket is not None
        config = uvicorn.Config(
            app,
            loop="none",
            http=Connection,
            ws=LinkConnection,
            ws_max_size=LINK_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            proxy_headers=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(self._config.stop_seconds),
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve([self._socket]), name="http")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait([ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Take no new connections, let requests under way finish, close."""
        task, self._task = self._task, None
        if task is not None and self._server is not None:
            self._server.should_exit = True
            await asyncio.wait([task])
            task.result()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def abort(self) -> None:
        """Close everything at once: requests under way are cut. Idempotent."""
        task, self._task = self._task, None
        if task is not None and self._server is not None:
            task.cancel()
            await asyncio.wait([task])
            await self._server.cut()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Server(uvicorn.Server):
    """uvicorn, which leaves signals to us and says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def cut(self) -> None:
        """End what `serve` left behind when it was cancelled."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
