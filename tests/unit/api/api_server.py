"""The API under uvicorn on a free port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn

from helmr.control.api import Api
from helmr.control.api.connection import Connection, LinkConnection


class Served:
    """A real server around an API."""

    def __init__(self, api: Api, port: int, stop: Callable[[], Awaitable[None]]) -> None:
        self.api = api
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.stop = stop


@asynccontextmanager
async def serving(api: Api) -> AsyncIterator[Served]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        api,
        http=Connection,
        ws=LinkConnection,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=4,
    )
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))

    async def stop() -> None:
        api.drain()
        server.should_exit = True
        await task

    try:
        yield Served(api, listener.getsockname()[1], stop)
    finally:
        await stop()
