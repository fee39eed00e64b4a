"""What every kind of worker link promises, whichever way the bytes go [I6]. `protocol.link`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
import pytest
from tests.unit.worker.link_server import CREDENTIAL, endpoint, links_of

from helmr.host.worker.flow import HIGH_WATER
from helmr.host.worker.link_websocket import WebSocketLinks, link_url
from helmr.host.worker.ports import LinkUnavailable
from helmr.protocol.limits import MIB
from helmr.protocol.link import Link

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio


class Ear:
    """Records what an end hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.closed = 0
        self.drained = 0
        self.on_message: Callable[[bytes], None] = self._message
        self.on_closed: Callable[[], None] = self._closed
        self.on_drained: Callable[[], None] = self._drained
        self._signal = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._signal.clear()
            await self._signal.wait()

    def _message(self, message: bytes) -> None:
        assert not self.closed, "a message after the close"
        self.heard.append(message)
        self._signal.set()

    def _closed(self) -> None:
        self.closed += 1
        self._signal.set()

    def _drained(self) -> None:
        self.drained += 1
        self._signal.set()


class Pair:
    """Both ends of an established link, by side."""

    def __init__(self) -> None:
        self.ears = {"control": Ear(), "worker": Ear()}
        self.links: dict[str, Link] = {}
        self.accepted = asyncio.Event()


@asynccontextmanager
async def pair_of(kind: str) -> AsyncIterator[Pair]:
    pair = Pair()

    def accept(link: Link) -> Ear:
        pair.links["control"] = link
        pair.accepted.set()
        return pair.ears["control"]

    async with links_of(kind, accept) as connect:
        pair.links["worker"] = await connect(pair.ears["worker"])
        await pair.accepted.wait()
        yield pair
        pair.links["worker"].close()


@pytest.fixture(params=["local", "websocket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["control", "worker"])
def sender(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def other(side: str) -> str:
    return "worker" if side == "control" else "control"


async def test_messages_arrive_whole_and_in_order(kind: str, sender: str, bounded: Bounded) -> None:
    async with bounded(), pair_of(kind) as pair:
        sent = [b"%06d" % number * (number % 50 + 1) for number in range(2000)]
        for message in sent:
            pair.links[sender].send(message)
        ear = pair.ears[other(sender)]
        await ear.until(lambda: len(ear.heard) == len(sent))
        assert ear.heard == sent
        assert pair.links[sender].queued_bytes == 0


async def test_a_message_of_a_mebibyte_passes(kind: str, sender: str, bounded: Bounded) -> None:
    async with bounded(), pair_of(kind) as pair:
        sent = [bytes([number]) * (MIB + 20) for number in range(3)]
        for message in sent:
            pair.links[sender].send(message)
        ear = pair.ears[other(sender)]
        await ear.until(lambda: len(ear.heard) == 3)
        assert ear.heard == sent


async def test_sending_never_calls_the_receiver_back_within_the_call(kind: str, sender: str, bounded: Bounded) -> None:
    async with bounded(), pair_of(kind) as pair:
        pair.links[sender].send(b"x")
        assert pair.ears[other(sender)].heard == []
        await pair.ears[other(sender)].until(lambda: pair.ears[other(sender)].heard == [b"x"])


async def test_what_was_sent_before_a_close_arrives_and_only_the_other_end_hears_of_it(kind: str, sender: str, bounded: Bounded) -> None:
    async with bounded(), pair_of(kind) as pair:
        for number in range(100):
            pair.links[sender].send(b"%d" % number)
        pair.links[sender].close("enough")
        pair.links[sender].send(b"too late")
        pair.links[sender].close("again")
        ear = pair.ears[other(sender)]
        await ear.until(lambda: ear.closed == 1)
        assert ear.heard == [b"%d" % number for number in range(100)]
        pair.links[other(sender)].send(b"to nobody")
        pair.links[other(sender)].close()
    assert (ear.closed, pair.ears[sender].closed) == (1, 0)
    assert pair.ears[sender].heard == []


async def test_the_worker_hears_when_its_full_queue_has_drained(kind: str, bounded: Bounded) -> None:
    async with bounded(), pair_of(kind) as pair:
        link, ear = pair.links["worker"], pair.ears["worker"]
        sent = 0
        while link.queued_bytes <= HIGH_WATER:
            link.send(bytes(MIB // 2))
            sent += 1
        assert ear.drained == 0
        await ear.until(lambda: ear.drained == 1)
        await pair.ears["control"].until(lambda: len(pair.ears["control"].heard) == sent)
        assert link.queued_bytes == 0


async def test_a_receiver_that_raises_loses_the_link_and_not_only_the_message(kind: str, bounded: Bounded) -> None:
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))

    def fail(message: bytes) -> None:
        raise ZeroDivisionError

    async with bounded(), pair_of(kind) as pair:
        pair.ears["worker"].on_message = fail
        pair.links["control"].send(b"1")
        pair.links["control"].send(b"2")
        await pair.ears["worker"].until(lambda: pair.ears["worker"].closed == 1)
    assert len(raised) == (1 if kind == "local" else 0)


async def test_a_refused_credential_is_told_apart_from_an_absent_control_plane(bounded: Bounded) -> None:
    async with bounded(), aiohttp.ClientSession() as session:
        async with endpoint(lambda _: Ear()) as server:
            with pytest.raises(LinkUnavailable) as refused:
                await WebSocketLinks(session, server.url, "wrong").connect(Ear())
            assert refused.value.refused
        with pytest.raises(LinkUnavailable) as absent:
            await WebSocketLinks(session, server.url, CREDENTIAL).connect(Ear())
        assert not absent.value.refused
    gc.collect()


async def test_links_that_are_stopped_leave_no_task_behind(bounded: Bounded) -> None:
    ear = Ear()
    async with bounded(), endpoint(lambda _: ear) as server, aiohttp.ClientSession() as session:
        links = WebSocketLinks(session, server.url, CREDENTIAL)
        await links.connect(Ear())
        await links.stop()
        await links.stop()
        await ear.until(lambda: ear.closed == 1)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "worker-link"]


def test_the_links_address_comes_from_the_control_planes() -> None:
    assert link_url("http://127.0.0.1:8000/") == "ws://127.0.0.1:8000/v1/workers/link"
    assert link_url("https://helmr.example") == "wss://helmr.example/v1/workers/link"
    with pytest.raises(ValueError):
        link_url("ftp://helmr.example")
