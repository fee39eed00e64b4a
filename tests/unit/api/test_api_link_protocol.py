"""The WebSocket under a worker's link: messages in order, and a bound on what waits untaken (DESIGN I4, 7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

from helmr.control.api.link_protocol import LONG_BYTES, UNTAKEN_MESSAGES, LinkProtocol
from helmr.control.api.table import WORKER_LINK_PATH
from helmr.control.listener import Listener, ListenerConfig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
_READ_BYTES = 256 * 1024
"""What the event loop reads at once: so much may come beyond the bound before the pause is felt."""


class App:
    """Takes messages when it is told to, and gives each back."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        assert scope["type"] == "websocket"
        await receive()
        await send({"type": "websocket.accept"})
        await self.go.wait()
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "bytes": message["bytes"]})


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def listener(app: App) -> AsyncIterator[Listener]:
    listener = Listener(ListenerConfig())
    await listener.start(app)
    yield listener
    await listener.stop()


@pytest.mark.parametrize("size", [20, LONG_BYTES + 1], ids=["short", "long"])
async def test_what_is_not_taken_stops_the_reading_and_nothing_is_lost(
    size: int, monkeypatch: pytest.MonkeyPatch, app: App, listener: Listener, bounded: Bounded
) -> None:
    paused, untaken = asyncio.Event(), 0
    given = LinkProtocol.send_receive_event_to_app

    def give(self: LinkProtocol) -> None:
        nonlocal untaken
        given(self)
        untaken = max(untaken, self.queue.qsize())
        if self.read_paused:
            paused.set()

    monkeypatch.setattr(LinkProtocol, "send_receive_event_to_app", give)
    messages = [number.to_bytes(4, "big") * (size // 4 + 1) for number in range(64)]
    async with bounded(), aiohttp.ClientSession() as session, session.ws_connect(listener.url + WORKER_LINK_PATH) as link:

        async def say() -> None:
            for message in messages:
                await link.send_bytes(message)

        saying = asyncio.create_task(say())
        await paused.wait()
        app.go.set()
        assert [await link.receive_bytes() for _ in messages] == messages
        await saying
    if size > LONG_BYTES:
        assert untaken <= UNTAKEN_MESSAGES + _READ_BYTES // size


async def test_a_message_that_is_taken_at_once_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, app: App, listener: Listener, bounded: Bounded
) -> None:
    pauses = 0
    given = LinkProtocol.send_receive_event_to_app

    def give(self: LinkProtocol) -> None:
        nonlocal pauses
        given(self)
        pauses += self.read_paused

    monkeypatch.setattr(LinkProtocol, "send_receive_event_to_app", give)
    app.go.set()
    async with bounded(), aiohttp.ClientSession() as session, session.ws_connect(listener.url + WORKER_LINK_PATH) as link:
        for number in range(10):
            await link.send_bytes(b"%d" % number)
            assert await link.receive_bytes() == b"%d" % number
    assert pauses == 0
