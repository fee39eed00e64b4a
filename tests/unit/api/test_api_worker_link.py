"""The worker link over a real WebSocket. DESIGN I4, I6."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import aiohttp
import pytest
from tests.unit.api.api_fakes import KEY, WORKER, WORKER_KEY, World
from tests.unit.api.api_server import Served

from helmr.control.api.worker_link import WebSocketLink
from helmr.host.worker.link_websocket import WebSocketLinks
from helmr.host.worker.ports import LinkUnavailable
from helmr.protocol.link import Link, pack, unpack

pytestmark = pytest.mark.anyio

Bounded = Callable[[], AbstractAsyncContextManager[object]]
PATH = "/v1/workers/link"
HEADERS = {"Authorization": f"Bearer {WORKER_KEY}"}


@dataclass
class End:
    """The control plane's end in a test."""

    worker: str
    link: Link
    received: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closes: int = 0

    def on_message(self, message: bytes) -> None:
        if message == b"explode":
            raise ValueError("a message that can't be handled")
        self.received.put_nowait(message)

    def on_closed(self) -> None:
        self.closes += 1
        self.closed.set()


@pytest.fixture
def ends(world: World) -> asyncio.Queue[End]:
    made: asyncio.Queue[End] = asyncio.Queue()

    def open_link(worker: str, link: Link) -> End:
        end = End(worker, link)
        made.put_nowait(end)
        return end

    world.open_link = open_link
    return made


async def shaken(port: int) -> asyncio.StreamWriter:
    """A connection after the handshake, without a client that would answer or mend anything."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [
        f"GET {PATH} HTTP/1.1",
        "Host: api",
        f"Authorization: Bearer {WORKER_KEY}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return writer


async def test_messages_pass_both_ways_in_order(served: Served, ends: asyncio.Queue[End], bounded: Bounded) -> None:
    messages = [b"\0\0\0\0" + str(n).encode() * n for n in range(300)] + [b"x" * 1_048_576]
    async with (
        bounded(),
        aiohttp.ClientSession() as session,
        session.ws_connect(served.url + PATH, headers=HEADERS, max_msg_size=0) as worker,
    ):
        end = await ends.get()
        assert end.worker == WORKER
        for message in messages:
            end.link.send(message)
            await worker.send_bytes(pack([message]))
        assert end.link.queued_bytes > 0
        received: list[bytes] = []
        while len(received) < len(messages):
            received += unpack(await worker.receive_bytes())
        assert received == messages
        assert [await end.received.get() for _ in messages] == messages
        assert end.link.queued_bytes == 0
        assert "helmr_worker_links 1.0" in await metrics(served)
    async with bounded():
        await end.closed.wait()
    assert end.closes == 1


async def metrics(served: Served) -> str:
    async with aiohttp.ClientSession() as session, session.get(served.url + "/metrics") as response:
        return await response.text()


@pytest.mark.parametrize("value", [None, f"Bearer {KEY}", "Bearer ", "Basic x"])
async def test_a_handshake_without_a_worker_credential_is_401(served: Served, ends: asyncio.Queue[End], value: str | None) -> None:
    headers = {"Authorization": value} if value is not None else {}
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(served.url + PATH, headers=headers)
    assert refused.value.status == 401
    assert ends.empty()


async def test_a_handshake_elsewhere_is_404(served: Served, ends: asyncio.Queue[End]) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(served.url + "/v1/elsewhere", headers=HEADERS)
    assert refused.value.status == 404


async def test_the_link_route_is_no_plain_request(served: Served) -> None:
    """Without the wish to upgrade it is a worker of that name, about which no worker may ask."""
    async with aiohttp.ClientSession() as session, session.get(served.url + PATH, headers=HEADERS) as response:
        assert response.status == 401


async def test_a_close_writes_what_was_sent_before_it_and_is_not_told_to_its_own_end(
    served: Served, ends: asyncio.Queue[End], bounded: Bounded
) -> None:
    async with bounded(), aiohttp.ClientSession() as session, session.ws_connect(served.url + PATH, headers=HEADERS) as worker:
        end = await ends.get()
        end.link.send(b"last")
        end.link.close("\u00fcber" * 100)
        end.link.send(b"too late")
        assert unpack(await worker.receive_bytes()) == [b"last"]
        assert (await worker.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING)
        assert worker.close_code == 1000
    assert end.closes == 0


@pytest.mark.parametrize(("message", "code"), [("text", 1003), (pack([b"explode"]), 1011), (b"\0\0\0\x09short", 1011), (b"\0", 1011)])
async def test_a_message_that_breaks_the_rules_ends_the_link(
    served: Served, ends: asyncio.Queue[End], bounded: Bounded, message: str | bytes, code: int
) -> None:
    async with bounded(), aiohttp.ClientSession() as session, session.ws_connect(served.url + PATH, headers=HEADERS) as worker:
        end = await ends.get()
        await (worker.send_str(message) if isinstance(message, str) else worker.send_bytes(message))
        await worker.send_bytes(pack([b"after it"]))
        await worker.receive()
        assert worker.close_code == code
        await end.closed.wait()
    assert (end.closes, end.received.empty()) == (1, True)


async def test_a_worker_that_vanishes_is_told_once(served: Served, ends: asyncio.Queue[End], bounded: Bounded) -> None:
    async with bounded():
        writer = await shaken(served.port)
        end = await ends.get()
        writer.transport.abort()
        await end.closed.wait()
        end.link.send(b"into nothing")
        end.link.close()
    assert (end.closes, end.link.queued_bytes) == (1, 0)


async def test_draining_ends_links_so_that_workers_go_elsewhere(served: Served, ends: asyncio.Queue[End], bounded: Bounded) -> None:
    async with bounded(), aiohttp.ClientSession() as session:
        worker = await session.ws_connect(served.url + PATH, headers=HEADERS)
        end = await ends.get()
        served.api.drain()
        await worker.receive()
        assert worker.close_code == 1012
        await end.closed.wait()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(served.url + PATH, headers=HEADERS)
        assert refused.value.status == 503


async def test_a_worker_that_takes_nothing_is_cut_off(served: Served, ends: asyncio.Queue[End], bounded: Bounded) -> None:
    async with bounded():
        writer = await shaken(served.port)
        end = await ends.get()
        writer.transport.pause_reading()
        while not end.closed.is_set():
            end.link.send(b"x" * 1_048_576)
            await asyncio.sleep(0)
        writer.transport.abort()
    assert end.closes == 1


async def test_our_own_worker_speaks_over_this_link(served: Served, ends: asyncio.Queue[End], bounded: Bounded) -> None:
    """Both halves of the link as they ship."""

    class Worker(End):
        def on_drained(self) -> None:
            """Nothing to go on with."""

    async with bounded(), aiohttp.ClientSession() as session:
        links = WebSocketLinks(session, served.url, WORKER_KEY)
        worker = Worker("", WebSocketLink())
        link = await links.connect(worker)
        end = await ends.get()
        for size in (5, 70_000, 1_048_576):
            link.send(b"u" * size)
            end.link.send(b"d" * size)
            assert await end.received.get() == b"u" * size
            assert await worker.received.get() == b"d" * size
        end.link.close()
        await worker.closed.wait()
        with pytest.raises(LinkUnavailable) as refused:
            await WebSocketLinks(session, served.url, KEY).connect(worker)
        assert refused.value.refused
        await links.stop()
    assert (end.closes, worker.closes) == (0, 1)


async def test_a_full_queue_cuts_the_link_and_keeps_nothing() -> None:
    link = WebSocketLink(queue_bytes=10)
    link.send(b"12345678")
    assert (link.queued_bytes, link.cut.is_set()) == (8, False)
    link.send(b"123")
    assert (link.queued_bytes, link.cut.is_set(), link.closed_here) == (0, True, False)
