"""The API on fake services: called in process, or served by uvicorn on a free port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from api_fakes import BLOB, KEY, World

from helmr.control.api import Api, StreamTiming, build_app


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World()
    made.blob_path = tmp_path / "blob"
    made.blob_path.write_bytes(BLOB)
    return made


@pytest.fixture
def api(world: World) -> Api:
    return build_app(world)


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """In process; a server's fault is an answer, as it is outside."""
    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers={"Authorization": f"Bearer {KEY}"}) as made:
        yield made


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
    config = uvicorn.Config(api, http="httptools", lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=4)
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


@pytest.fixture
async def served(world: World) -> AsyncIterator[Served]:
    """Streams beat each 50 ms here, and a reader is dropped after 300 ms."""
    timing = StreamTiming(heartbeat_seconds=0.05, patience_seconds=0.3, grace_seconds=0.05)
    async with serving(build_app(world, timing=timing)) as made:
        yield made
