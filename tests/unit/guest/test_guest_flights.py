"""Which requests of a Session process count as in flight, and until when. [C6], UD-37."""

from __future__ import annotations

import asyncio
import gc
import http.client
import importlib
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
import pytest
import urllib3

from helmr.guest.runtime import http_clients
from helmr.guest.runtime.context import LiveContext
from helmr.guest.runtime.flights import Flights, flights

pytestmark = pytest.mark.anyio


@dataclass
class Origin:
    """Answers once it is let to; the second half of an answer when it is let to again."""

    port: int = 0
    asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    heads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.asked.release()
                await self.heads.acquire()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhe")
                await self.bodies.acquire()
                writer.write(b"re")
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.close()


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    found = Origin()
    server = await asyncio.start_server(found.begin, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()
    for task in found.tasks:
        task.cancel()
    await asyncio.gather(*found.tasks, return_exceptions=True)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients of this process, wrapped as in a Session process for as long as the test takes."""
    for name, attributes in {
        "http.client": ["HTTPConnection.putrequest", "HTTPConnection.getresponse", "HTTPConnection.close", "HTTPResponse._close_conn"],
        "httpx._client": ["Client.send", "AsyncClient.send"],
        "aiohttp.client": ["ClientSession._request", "ClientResponse.close", "ClientResponse.release"],
    }.items():
        module = importlib.import_module(name)
        for attribute in attributes:
            owner, _, method = attribute.partition(".")
            monkeypatch.setattr(getattr(module, owner), method, getattr(getattr(module, owner), method))
        monkeypatch.setattr(module, http_clients._WRAPPED, False, raising=False)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    http_clients.count_requests()
    assert now() == 0


def now() -> int:
    return flights._counts["requests"]


async def with_http_client(url: str, step: Callable[[str], Awaitable[None]]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(url.rsplit(":", 1)[1].strip("/")))
    for _ in range(2):  # the second on the connection that was kept alive
        await asyncio.to_thread(connection.request, "GET", "/")
        await step("asked")
        answer = await asyncio.to_thread(connection.getresponse)
        await step("answered")
        assert await asyncio.to_thread(answer.read) == b"here"
        await step("read")
    connection.close()


async def with_urllib3(url: str, step: Callable[[str], Awaitable[None]]) -> None:
    pool = urllib3.PoolManager()
    for _ in range(2):
        asking = asyncio.ensure_future(asyncio.to_thread(pool.request, "GET", url, preload_content=False))
        await step("asked")
        answer = await asking
        await step("answered")
        assert await asyncio.to_thread(answer.read) == b"here"
        await step("read")
    pool.clear()


async def with_httpx(url: str, step: Callable[[str], Awaitable[None]]) -> None:
    async with httpx.AsyncClient() as client:
        for _ in range(2):
            asking = asyncio.ensure_future(client.send(client.build_request("GET", url), stream=True))
            await step("asked")
            answer = await asking
            await step("answered")
            assert await answer.aread() == b"here"
            await step("read")


async def with_blocking_httpx(url: str, step: Callable[[str], Awaitable[None]]) -> None:
    with httpx.Client() as client:
        for _ in range(2):
            asking = asyncio.ensure_future(asyncio.to_thread(client.send, client.build_request("GET", url), stream=True))
            await step("asked")
            answer = await asking
            await step("answered")
            assert await asyncio.to_thread(answer.read) == b"here"
            await step("read")


async def with_aiohttp(url: str, step: Callable[[str], Awaitable[None]]) -> None:
    async with aiohttp.ClientSession() as client:
        for _ in range(2):
            asking = asyncio.ensure_future(_asked(client, url))
            await step("asked")
            answer = await asking
            await step("answered")
            assert await answer.read() == b"here"
            await step("read")


async def _asked(client: aiohttp.ClientSession, url: str) -> aiohttp.ClientResponse:
    return await client.get(url)


@pytest.mark.ud("UD-37")
@pytest.mark.parametrize("client", [with_http_client, with_urllib3, with_httpx, with_blocking_httpx, with_aiohttp])
async def test_a_request_is_in_flight_until_its_answer_was_read_and_its_connection_then_is_not(client: Any, origin: Origin) -> None:
    """[C6]: loopback too, and also the second one on a kept connection."""

    async def step(what: str) -> None:
        if what == "asked":
            await origin.asked.acquire()
            assert now() == 1
            origin.heads.release()
        elif what == "answered":
            assert now() == 1
            origin.bodies.release()
        else:
            assert now() == 0

    async with asyncio.timeout(20):
        await client(f"http://127.0.0.1:{origin.port}/", step)
    assert now() == 0


async def test_a_request_that_fails_or_whose_answer_is_given_up_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
    async with asyncio.timeout(20):
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient().get(url)
        with pytest.raises(urllib3.exceptions.MaxRetryError):
            await asyncio.to_thread(urllib3.PoolManager(retries=0).request, "GET", url)
        async with aiohttp.ClientSession() as client:
            with pytest.raises(aiohttp.ClientError):
                await client.get(url)
    assert now() == 0


async def test_an_answer_that_nobody_holds_any_more_is_over(origin: Origin) -> None:
    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", origin.port)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert now() == 1 and answer.status == 200
        connection.sock.close()

    origin.heads.release()
    async with asyncio.timeout(20):
        await asyncio.to_thread(ask)
    gc.collect()
    assert now() == 0
    origin.bodies.release()


def test_a_client_that_is_imported_later_is_counted_and_none_is_imported_for_it() -> None:
    """In a process of its own, as Sessions are."""
    code = """
import sys
from helmr.guest.runtime.http_clients import count_requests
from helmr.guest.runtime.flights import flights
count_requests()
assert not {"http.client", "httpx", "aiohttp"} & set(sys.modules)
import http.client, socket
server = socket.create_server(("127.0.0.1", 0))
connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1])
connection.request("GET", "/")
assert flights._counts["requests"] == 1
connection.close()
assert flights._counts["requests"] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_only_the_first_and_the_last_of_a_kind_are_told_from_whatever_thread() -> None:
    told: list[tuple[int, int]] = []
    counts = Flights()
    counts.attend(lambda requests, kept: told.append((requests, kept)))
    first, second = counts.begin(), counts.begin()
    first.end()
    first.end()
    assert told == [(1, 0)]
    thread = threading.Thread(target=second.end)
    thread.start()
    await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)
    assert told == [(1, 0), (0, 0)]
    counts.leave()
    counts.begin("kept")
    assert len(told) == 2


async def test_keep_awake_counts_while_it_is_open_and_a_day_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """[C6]"""
    opened = {"session": {"id": "s"}, "computer": "c", "deployment": "d", "recovery": {"kind": "initial"}}
    context = LiveContext(opened)
    async with context.keep_awake(), context.keep_awake():
        assert flights._counts["kept"] == 2
    assert flights._counts["kept"] == 0
    monkeypatch.setattr("helmr.guest.runtime.context.AWAKE_SECONDS", 0.0)
    async with context.keep_awake():
        for _ in range(3):
            await asyncio.sleep(0)
        assert flights._counts["kept"] == 0
    assert flights._counts["kept"] == 0
