"""Event streams and long polls on a real server, read below any client that would mend them. [E4]"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import aiohttp
import httpx
import pytest
from tests.unit.api.api_asking import is_problem
from tests.unit.api.api_fakes import DEPLOYMENT, FOREIGN_SESSION, KEY, SESSION, TURN, Stored, World, stored
from tests.unit.api.api_server import Served

from helmr.protocol import errors

pytestmark = pytest.mark.anyio

Bounded = Callable[[], AbstractAsyncContextManager[object]]
STREAM = f"/v1/sessions/{SESSION}/events/stream"
WAIT = f"/v1/sessions/{SESSION}/turns/{TURN}?wait=60s"


async def opened(port: int, path: str, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a GET was just sent; it takes little before it is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
    lines = [f"GET {path} HTTP/1.1", "Host: api", f"Authorization: Bearer {KEY}", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    return reader, writer


async def whole(port: int, path: str, *headers: str) -> tuple[bytes, bytes]:
    """Head and body of a reply on a connection that the server is asked to close; chunks joined."""
    reader, writer = await opened(port, path, *headers, "Connection: close")
    data = await reader.read()
    writer.close()
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, unchunked(rest)


def unchunked(data: bytes) -> bytes:
    found: list[bytes] = []
    at = 0
    while at < len(data):
        line = data.index(b"\r\n", at)
        length = int(data[at:line], 16)
        found.append(data[line + 2 : line + 2 + length])
        at = line + 4 + length
    return b"".join(found)


async def quiet(after: int) -> AsyncIterator[Sequence[Stored]]:
    """Nothing ever happens."""
    await asyncio.Event().wait()
    yield []


@pytest.mark.ud("UD-49")
async def test_only_stored_events_carry_an_id_and_the_end_has_none(served: Served, world: World, bounded: Bounded) -> None:
    release = asyncio.Event()

    async def batches(after: int) -> AsyncIterator[Sequence[Stored]]:
        yield [stored(1), stored(2, "line\nbreak\u2028\u0000")]
        yield []
        await release.wait()
        yield [stored(3)]

    world.batches = batches
    async with bounded():
        reader, writer = await opened(served.port, STREAM)
        seen = b""
        while seen.count(b": heartbeat\n\n") < 2:
            seen += await reader.read(65536)
        release.set()
        while b"0\r\n\r\n" not in seen:
            seen += await reader.read(65536)
        writer.close()
    head, _, rest = seen.partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert b"content-type: text/event-stream; charset=utf-8" in head
    body = unchunked(rest)
    blocks = body.split(b"\n\n")
    assert blocks[0] == b"retry: 1000"
    assert blocks[-2:] == [b"event: end\ndata: {}", b""]
    events = [block for block in blocks if block.startswith(b"id: ")]
    assert events == [
        b"id: %d\ndata: %b" % (item.sequence, item.body) for item in (stored(1), stored(2, "line\nbreak\u2028\u0000"), stored(3))
    ]
    assert set(blocks) - set(events) == {b"retry: 1000", b": heartbeat", b"event: end\ndata: {}", b""}
    assert body.index(b": heartbeat") < body.index(b"id: 3\n")


@pytest.mark.parametrize(
    ("query", "header", "first"),
    [
        ("", None, 1),
        ("?after=2", None, 3),
        ("", "Last-Event-ID: 1", 2),
        ("?after=1", "Last-Event-ID: 2", 3),
        ("?after=2", "Last-Event-ID: 0", 1),
    ],
)
async def test_a_stream_begins_after_what_its_reader_has_seen(
    served: Served, query: str, header: str | None, first: int, bounded: Bounded
) -> None:
    async with bounded():
        _, body = await whole(served.port, STREAM + query, *([header] if header else []))
    assert [int(found) for found in re.findall(rb"^id: (\d+)$", body, re.MULTILINE)] == list(range(first, 4))


@pytest.mark.parametrize("seen", ["x", "-1", "1.5", "9007199254740992", "99999999999999999999"])
async def test_a_last_event_id_that_is_no_sequence_is_refused(client: httpx.AsyncClient, seen: str) -> None:
    is_problem(await client.get(STREAM, headers={"Last-Event-ID": seen}), 400, "invalid_cursor")


async def test_what_refuses_a_stream_has_a_status(client: httpx.AsyncClient, world: World) -> None:
    is_problem(await client.get(f"/v1/sessions/{FOREIGN_SESSION}/events/stream"), 404, "session_not_found")

    async def expired(after: int) -> AsyncIterator[Sequence[Stored]]:
        raise errors.CursorExpired(retained_after=7)
        yield []

    world.batches = expired
    assert is_problem(await client.get(STREAM), 410, "cursor_expired")["retained_after"] == 7


async def test_a_stream_of_which_nothing_comes_yet_is_open_at_once(served: Served, world: World, bounded: Bounded) -> None:
    world.batches = quiet
    async with bounded():
        reader, writer = await opened(served.port, STREAM)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"retry: 1000" in await reader.readuntil(b"\n\n")
        writer.close()
        await world.follower_left.wait()
    assert world.followers == 0


async def test_garbage_behind_the_request_of_a_stream_ends_it_and_is_not_written_into_it(
    served: Served, world: World, bounded: Bounded
) -> None:
    world.batches = quiet
    async with bounded():
        reader, writer = await opened(served.port, STREAM)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\0 no HTTP\r\n\r\n")
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()
        await world.follower_left.wait()


async def test_a_stream_that_fails_later_is_cut_without_an_end(served: Served, world: World, bounded: Bounded) -> None:
    async def batches(after: int) -> AsyncIterator[Sequence[Stored]]:
        yield [stored(1)]
        raise errors.DatabaseUnavailable()

    world.batches = batches
    async with bounded():
        reader, writer = await opened(served.port, STREAM)
        data = await reader.read()
        writer.close()
    assert b"id: 1\n" in data
    assert b"event: end" not in data
    assert not data.endswith(b"0\r\n\r\n")


@pytest.mark.ud("UD-52")
async def test_a_reader_that_takes_nothing_is_dropped_and_others_see_all(served: Served, world: World, bounded: Bounded) -> None:
    """Its iterator is not advanced beyond what one write holds, and it ends; another reader is not held up."""
    produced = {"most": 0}

    async def batches(after: int) -> AsyncIterator[Sequence[Stored]]:
        for start in range(after, 100_000, 500):
            yield [stored(start + n + 1, "x" * 200) for n in range(500)]
            produced["most"] = max(produced["most"], start + 500)

    async def endless(after: int) -> AsyncIterator[Sequence[Stored]]:
        sequence = after
        while True:
            sequence += 1
            produced["endless"] = sequence
            yield [stored(sequence, "x" * 100_000)]

    world.batches = endless
    async with bounded():
        stalled, stalled_writer = await opened(served.port, STREAM)
        stalled_writer.transport.pause_reading()
        await world.follower_left.wait()
    assert produced["endless"] < 1000
    world.batches = batches
    async with asyncio.timeout(20):
        _, body = await whole(served.port, STREAM)
    assert [int(found) for found in re.findall(rb"^id: (\d+)$", body, re.MULTILINE)] == list(range(1, 100_001))
    stalled_writer.transport.resume_reading()
    async with bounded():
        assert b"event: end" not in await stalled.read()
    stalled_writer.close()
    text = await fetched(served, "/metrics")
    assert "helmr_http_slow_readers_dropped_total 1.0" in text


async def fetched(served: Served, path: str) -> str:
    return (await got(served, path)).text


async def got(served: Served, path: str) -> httpx.Response:
    """A whole answer over the network, on a connection of its own."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(served.url + path) as response:
        return httpx.Response(response.status, headers=list(response.headers.items()), content=await response.read())


async def test_a_slow_reader_in_time_gets_everything(served: Served, world: World, bounded: Bounded) -> None:
    async def batches(after: int) -> AsyncIterator[Sequence[Stored]]:
        yield [stored(n, "y" * 2000) for n in range(1, 2001)]

    world.batches = batches
    async with bounded():
        reader, writer = await opened(served.port, STREAM, "Connection: close")
        data = b""
        while piece := await reader.read(8192):
            data += piece
        writer.close()
    body = unchunked(data.partition(b"\r\n\r\n")[2])
    assert len(re.findall(rb"^id: ", body, re.MULTILINE)) == 2000
    assert body.endswith(b"event: end\ndata: {}\n\n")


async def test_a_record_beyond_the_write_size_goes_whole(served: Served, world: World, bounded: Bounded) -> None:
    """[E6] allows 256 KiB a record."""

    async def batches(after: int) -> AsyncIterator[Sequence[Stored]]:
        yield [stored(1), stored(2, "z" * 262_000), stored(3)]

    world.batches = batches
    async with bounded():
        _, body = await whole(served.port, STREAM)
    assert body.count(b"\nid: ") == 3
    assert b"z" * 262_000 in body


@pytest.mark.parametrize("count", [25])
async def test_readers_that_leave_end_their_iterators(served: Served, world: World, count: int, bounded: Bounded) -> None:
    """[I7], UD-53"""
    world.batches = quiet
    writers: list[asyncio.StreamWriter] = []
    async with bounded():
        for _ in range(count):
            reader, writer = await opened(served.port, STREAM)
            await reader.readuntil(b"\n\n")
            writers.append(writer)
        assert world.followers == count
        assert f"helmr_http_open_waits {float(count)}" in await fetched(served, "/metrics")
        for writer in writers:
            writer.transport.abort()
        while world.followers:
            world.follower_left.clear()
            await world.follower_left.wait()


async def test_open_streams_and_waits_end_when_the_server_drains(served: Served, world: World, bounded: Bounded) -> None:
    world.batches = quiet
    async with bounded():
        reader, writer = await opened(served.port, STREAM)
        await reader.readuntil(b"\n\n")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(got(served, WAIT))
            await world.waiting.wait()
            served.api.drain()
        assert waiting.result().json()["status"] == "running"
        is_problem(await got(served, STREAM), 503, "shutting_down")
        ready = await got(served, "/readyz")
        is_problem(ready, 503, "shutting_down")
        assert ready.headers["retry-after"] == "1"
        assert (await got(served, "/healthz")).status_code == 200
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b"event: end" not in rest
        writer.close()
        await served.stop()
    assert world.followers == 0


async def test_a_wait_answers_as_soon_as_the_turn_settles(served: Served, world: World, bounded: Bounded) -> None:
    async with bounded(), asyncio.TaskGroup() as group:
        waiting = group.create_task(got(served, WAIT))
        await world.waiting.wait()
        world.settled.set()
    assert waiting.result().json()["status"] == "completed"


async def test_a_wait_whose_client_left_is_cancelled(served: Served, world: World, bounded: Bounded) -> None:
    async with bounded():
        _, writer = await opened(served.port, WAIT)
        await world.waiting.wait()
        writer.transport.abort()
        await world.wait_cancelled.wait()


async def test_a_wait_that_is_refused_has_its_own_error(served: Served, world: World) -> None:
    world.fails["turns_get"] = errors.TurnNotFound()
    is_problem(await got(served, WAIT), 404, "turn_not_found")


async def test_a_build_log_is_text_without_ids(served: Served, bounded: Bounded) -> None:
    async with bounded():
        _, body = await whole(served.port, f"/v1/deployments/{DEPLOYMENT}/events")
    assert body == b"retry: 1000\n\ndata: Step 1: one\ndata: two\n\ndata: done\ndata: \n\nevent: end\ndata: {}\n\n"


async def test_an_upload_that_breaks_off_stores_nothing(served: Served, world: World, bounded: Bounded) -> None:
    from tests.unit.api.api_fakes import DIGEST

    async with bounded():
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        lines = [f"PUT /v1/blobs/{DIGEST} HTTP/1.1", "Host: api", f"Authorization: Bearer {KEY}", "Content-Length: 1000", "", "half"]
        writer.write("\r\n".join(lines).encode())
        await writer.drain()
        writer.write_eof()
        await reader.read()
        writer.close()
    assert world.uploads == {}


async def test_a_body_is_refused_by_its_declared_length_before_any_of_it_comes(served: Served, bounded: Bounded) -> None:
    async with bounded():
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        lines = [f"POST /v1/sessions/{SESSION}/turns HTTP/1.1", "Host: api", f"Authorization: Bearer {KEY}", f"Content-Length: {10**12}"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
    assert b" 413 " in head.splitlines()[0]
    assert b"connection: close" in head


async def test_a_body_that_is_too_long_is_refused_while_it_is_sent(served: Served, bounded: Bounded) -> None:
    """Chunked, so that no length is known: the answer comes, and the connection is not used again."""
    async with bounded():
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        path = f"/v1/sessions/{SESSION}/turns"
        lines = [f"POST {path} HTTP/1.1", "Host: api", f"Authorization: Bearer {KEY}", "Transfer-Encoding: chunked", "", ""]
        writer.write("\r\n".join(lines).encode())
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        for _ in range(34):
            writer.write(chunk)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
    assert b" 413 " in head.splitlines()[0]
    assert b"connection: close" in head
