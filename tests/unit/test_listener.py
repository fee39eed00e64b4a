"""The HTTP listener: its port, its start and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

from helmr.control.listener import Listener, ListenerConfig
from helmr.protocol.errors import PortInUse, SetupError

Bounded = Callable[[], AbstractAsyncContextManager[object]]


class App:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        self.asked.set()
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def listener(app: App) -> AsyncIterator[Listener]:
    listener = Listener(ListenerConfig())
    await listener.start(app)
    yield listener
    await listener.stop()


async def test_a_request_under_way_is_answered_when_the_listener_stops(listener: Listener, app: App, bounded: Bounded) -> None:
    url = listener.url
    async with bounded(), aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.get(url))
        await app.asked.wait()
        stopping = asyncio.create_task(listener.stop())
        await asyncio.sleep(0)
        app.go.set()
        response = await asking
        assert await response.text() == "ok"
        await stopping
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url)


async def test_a_port_in_use_is_refused_before_anything_starts(listener: Listener) -> None:
    port = int(listener.url.rpartition(":")[2])
    with pytest.raises(PortInUse, match=str(port)):
        Listener(ListenerConfig(port=port)).bind()


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(SetupError, match=r"192\.0\.2\.1"):
        Listener(ListenerConfig(host="192.0.2.1")).bind()


async def test_the_port_is_free_after_stop() -> None:
    first = Listener(ListenerConfig())
    first.bind()
    port = int(first.url.rpartition(":")[2])
    await first.stop()
    second = Listener(ListenerConfig(port=port))
    second.bind()
    assert second.url == f"http://127.0.0.1:{port}"
    await second.stop()
