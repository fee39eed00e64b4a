"""The API on fake services: called in process, or served by uvicorn on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.unit.api.api_fakes import BLOB, KEY, World
from tests.unit.api.api_server import Served, serving

from helmr.control.api import Api, StreamTiming, build_app
from helmr.control.api.site import Site


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World()
    made.blob_path = tmp_path / "blob"
    made.blob_path.write_bytes(BLOB)
    return made


@pytest.fixture
def api(world: World) -> Api:
    return build_app(world, site=Site(url="https://api"))


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """In process; a server's fault is an answer, as it is outside."""
    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers={"Authorization": f"Bearer {KEY}"}) as made:
        yield made


@pytest.fixture
async def served(world: World) -> AsyncIterator[Served]:
    """Streams beat each 50 ms here, and a reader is dropped after a second."""
    timing = StreamTiming(heartbeat_seconds=0.05, patience_seconds=1.0, grace_seconds=0.05)
    async with serving(build_app(world, timing=timing)) as made:
        yield made
