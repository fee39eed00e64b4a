"""Event streams over bad networks, between control planes, and with readers that don't read. SPEC [E1], [E4], I7; UD-49, 51, 52, 53, 58."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from tests.scenarios.cutting import Cutter
from tests.scenarios.installed import installed
from tests.scenarios.watching import heard, outcome, probe, timeline, words

from helmr.client import HelmrClient
from helmr.client.event_stream import EventStream
from helmr.client.retry import RetryPolicy
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(180)
LINKED, OTHER = 0, 1


async def _at_once(seconds: float) -> None:
    """The waits between attempts are the client's own tests' matter: here each would make the test longer, not harder."""
    await asyncio.sleep(min(seconds, 0.005))


UNDAUNTED = RetryPolicy(attempts=10_000, first=0.001, longest=0.01, patience=60, waiting_patience=60, sleep=_at_once)


@pytest.fixture(scope="module")
async def pair(anyio_backend: str) -> AsyncIterator[Installation]:
    """Two control planes on one database, the worker linked to the first."""
    async with installed(Path(__file__).parent / "project", planes=2) as installation:
        yield installation


async def poured(client: HelmrClient, turns: int, outputs: int, size: int) -> Any:
    """A Session that writes, Turn after Turn, and closes at the end."""
    session, _ = await probe(client, f"pour:{outputs},{size}")
    for _ in range(turns - 1):
        await session.enqueue(words(f"pour:{outputs},{size}"))
    await session.close()
    return session


async def followed(client: HelmrClient, session_id: str) -> tuple[list[Any], EventStream]:
    """All events of a Session as the client's iterator gives them, to its own end."""
    found: list[Any] = []
    async with asyncio.timeout(120), client.sessions.ref(session_id).events.stream() as stream:
        async for event in stream:
            found.append(event)
    return found, stream


def session_stream(client: HelmrClient, session_id: str) -> EventStream:
    return client.sessions.ref(session_id).events.stream()


def told(events: list[Any]) -> list[tuple[int, str, Any]]:
    return [(event.sequence, event.kind, event.data) for event in events]


@pytest.mark.ud("UD-51")
async def test_a_stream_cut_two_hundred_times_while_it_grows_is_the_log(pair: Installation) -> None:
    """At random bytes: in status lines, headers, chunk lengths, in the middle of characters. No event twice, none missing, in order."""
    async with pair.client() as near, Cutter([pair.planes[LINKED].port], cuts=200, seed=7) as cutter:
        session = await poured(near, turns=8, outputs=800, size=40)
        async with HelmrClient(cutter.url, pair.key, retry=UNDAUNTED) as client:
            found, stream = await followed(client, session.id)
        assert told(found) == told(await timeline(session))
        assert cutter.cuts == 0 and cutter.streams >= 200
        assert found[-1].kind.startswith("session.process_") or found[-1].kind == "session.closed"
        assert (await anext(stream, None)) is None


@pytest.mark.ud("UD-51")
async def test_a_reader_that_hops_between_control_planes_reads_the_log(pair: Installation) -> None:
    """Each connection at the other plane; what happens is written at one of them alone. The other is killed and comes back meanwhile."""
    ports = [pair.planes[OTHER].port, pair.planes[LINKED].port]
    async with pair.client(LINKED) as near, Cutter(ports, cuts=1000, seed=3) as cutter:
        session, turn = await probe(near, "pour:300,30")
        async with HelmrClient(cutter.url, pair.key, retry=UNDAUNTED) as client, session_stream(client, session.id) as stream:
            found = [await anext(stream)]

            async def caught_up(turn: Any) -> set[int]:
                """Read to the end of a Turn; who served that."""
                cutter.served.clear()
                while (found[-1].turn_id, found[-1].kind) != (turn.id, "turn.completed"):
                    found.append(await anext(stream))
                return set(cutter.served)

            async with asyncio.timeout(90):
                assert await caught_up(turn) == set(ports)
                pair.kill_server(plane=OTHER)
                assert await caught_up(await session.enqueue(words("pour:300,30"))) == {pair.planes[LINKED].port}
                await pair.start_server(plane=OTHER)
                assert await caught_up(await session.enqueue(words("pour:300,30"))) == set(ports)
                await session.close()
                found += [event async for event in stream]
        assert told(found) == told(await timeline(session))


async def test_a_stream_over_restarts_of_its_only_control_plane_is_the_log(pair: Installation) -> None:
    """kill -9 twice under a growing Session, then it closes: the client notices nothing but the time."""
    async with pair.client(LINKED) as near:
        session, turn = await probe(near, "until_told:")
        async with HelmrClient(pair.url, pair.key, retry=UNDAUNTED) as client, asyncio.TaskGroup() as group:
            following = group.create_task(followed(client, session.id))
            await heard(session, "turn.output", turn=turn.id)
            for number in range(2):
                pair.kill_server(plane=LINKED)
                await pair.start_server(plane=LINKED)
                await session.enqueue(words(f"echo:{number}"))
            await turn.send(words("go"))
            await session.close()
        found, stream = following.result()
        assert told(found) == told(await timeline(session))
        assert stream.connections >= 3


async def test_a_proxy_that_buffers_delays_and_loses_nothing(pair: Installation) -> None:
    async with pair.client() as near, Cutter([pair.planes[OTHER].port], cuts=0, bursts=True) as cutter:
        session = await poured(near, turns=2, outputs=100, size=100)
        async with HelmrClient(cutter.url, pair.key, retry=UNDAUNTED) as client:
            found, stream = await followed(client, session.id)
        assert told(found) == told(await timeline(session))
        assert stream.connections == 1


async def test_a_half_open_connection_is_given_up_after_silence(pair: Installation) -> None:
    """The other end is gone without a word: heartbeats are missed, another connection is made, nothing is lost."""
    async with pair.client() as near, Cutter([pair.planes[LINKED].port], cuts=0) as cutter:
        session, turn = await probe(near, "until_told:")
        async with HelmrClient(cutter.url, pair.key, retry=UNDAUNTED) as client, asyncio.timeout(60):
            path = f"/v1/sessions/{session.id}/events/stream"
            stream = EventStream(client._transport, path, 0, silence=1.0)  # pyright: ignore[reportPrivateUsage]
            found = [await anext(stream)]
            while found[-1].kind != "turn.output":
                found.append(await anext(stream))
            cutter.silent = True
            asked = cutter.streams
            await turn.send(words("unheard"))
            await outcome(turn)
            following = asyncio.ensure_future(anext(stream))
            while cutter.streams == asked:
                await asyncio.wait([following], timeout=0.05)
            cutter.silent = False
            found.append(await following)
            while found[-1].kind != "turn.completed":
                found.append(await anext(stream))
            await stream.aclose()
        assert told(found) == told((await timeline(session))[: len(found)])
        await session.cancel()


@pytest.mark.ud("UD-49")
async def test_only_what_is_in_the_log_has_an_id(pair: Installation) -> None:
    """The raw bytes of a stream: each id is a sequence of the log, in order; retry, heartbeats and the end have none."""
    async with pair.client() as client:
        session = await poured(client, turns=1, outputs=50, size=3)
        headers = {"Authorization": f"Bearer {pair.key}"}
        url = f"/v1/sessions/{session.id}/events/stream"
        async with aiohttp.ClientSession(pair.planes[OTHER].url, headers=headers) as http, http.get(url) as reply:
            body = (await reply.read()).decode()
        log = await timeline(session)
        assert [int(found) for found in re.findall(r"^id: (.*)$", body, re.MULTILINE)] == [event.sequence for event in log]
        assert body.endswith("\n\nevent: end\ndata: {}\n\n")
        for block in body.split("\n\n")[:-1]:
            lines = block.split("\n")
            if lines[0].startswith("id: "):
                assert len(lines) == 2 and json.loads(lines[1].removeprefix("data: "))["sequence"] == int(lines[0][4:])
            else:
                assert block in ("retry: 1000", ": heartbeat", "event: end\ndata: {}")


@pytest.mark.ud("UD-58")
async def test_a_snapshot_and_the_events_after_it_are_the_state_whenever_it_is_taken(pair: Installation) -> None:
    """A reader that comes at any moment, at either plane: the page until then and the stream after it make the whole."""
    async with pair.client(LINKED) as near, pair.client(OTHER) as far:
        session = await poured(near, turns=5, outputs=60, size=5)

        async def reader(client: HelmrClient) -> list[Any]:
            ref = client.sessions.ref(session.id)
            page = await ref.events.list(limit=1000)
            async with ref.events.stream(after=page.next_after) as stream:
                return [*page.records, *[event async for event in stream]]

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            readers = []
            for number in range(12):
                readers.append(group.create_task(reader((near, far)[number % 2])))
                await near.sessions.ref(session.id).get()
        log = told(await timeline(session))
        assert all(told(task.result()) == log for task in readers)


# --- readers that don't read ----------------------------------------------------------------------------------------------------


def resident(installation: Installation, plane: int) -> int:
    """Resident memory of a control plane's process, in bytes."""
    process = installation.planes[plane].process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


async def stalled(port: int, path: str, key: str) -> asyncio.StreamWriter:
    """A reader that asks for a stream and then takes nothing of it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return writer


async def flooded(pair: Installation, readers: int, turns: int) -> int:
    """How much memory the plane takes while `turns` Turns of almost 8 MiB pass `readers` that don't read; each Turn completes."""
    async with pair.client() as client:
        session, turn = await probe(client, "echo:first")
        await outcome(turn)
        path = f"/v1/sessions/{session.id}/events/stream"
        before = most = resident(pair, LINKED)
        writers = [await stalled(pair.planes[LINKED].port, path, pair.key) for _ in range(readers)]
        try:
            for _ in range(turns):
                turn = await session.enqueue(words("pour:128,16000"))
                assert (await outcome(turn, 60)).status == "completed"
                most = max(most, resident(pair, LINKED))
        finally:
            for writer in writers:
                writer.transport.abort()
        log = await timeline(session)
        assert sum(event.kind == "turn.output" for event in log) == 1 + 128 * turns
        await session.cancel()
        return most - before


@pytest.mark.ud("UD-52")
@pytest.mark.ud("UD-53")
async def test_readers_that_take_nothing_hold_little_memory_and_no_turn(pair: Installation) -> None:
    """I7: forty megabytes pass twenty of them. What one holds is a part of a page, not the log."""
    grown = await flooded(pair, readers=20, turns=5)
    print(f"40 MB passed 20 readers that took nothing: the control plane grew by {grown / 2**20:.0f} MiB")
    assert grown < 64 << 20


@pytest.mark.soak
@pytest.mark.ud("UD-52")
async def test_fifty_readers_that_take_nothing_hold_little_memory_while_100_mb_pass(pair: Installation) -> None:
    grown = await flooded(pair, readers=50, turns=13)
    print(f"100 MB passed 50 readers that took nothing: the control plane grew by {grown / 2**20:.0f} MiB")
    assert grown < 100 << 20


@pytest.mark.ud("UD-53")
async def test_twenty_viewers_that_come_and_vanish_change_nothing_for_a_turn(pair: Installation) -> None:
    async with pair.client() as client:
        session, turn = await probe(client, "until_told:")
        path = f"/v1/sessions/{session.id}/events/stream"
        for _ in range(5):
            for writer in [await stalled(pair.planes[LINKED].port, path, pair.key) for _ in range(20)]:
                writer.transport.abort()
        await heard(session, "turn.output", turn=turn.id)
        await turn.send(words("all gone"))
        assert (await outcome(turn)).result["said"] == "all gone"
        await session.cancel()


async def open_streams(pair: Installation, count: int) -> tuple[int, int]:
    """So many streams of quiet Sessions at one plane: its memory before and with them. None has a connection to the database."""
    observer = await asyncpg.connect(pair.dsn)
    headers = {"Authorization": f"Bearer {pair.key}"}
    async with pair.client(OTHER) as client, AsyncExitStack() as opened:
        opened.push_async_callback(observer.close)
        sessions = [(await client.sessions.create(agent="probe")).session for _ in range(10)]
        connector = aiohttp.TCPConnector(limit=0)
        http = await opened.enter_async_context(aiohttp.ClientSession(pair.planes[OTHER].url, headers=headers, connector=connector))
        before = resident(pair, OTHER)
        streams: list[aiohttp.ClientResponse] = []
        for number in range(count):
            reply = await http.get(f"/v1/sessions/{sessions[number % 10].id}/events/stream")
            opened.callback(reply.close)
            assert reply.status == 200 and (await reply.content.readuntil(b"\n\n")) == b"retry: 1000\n\n"
            streams.append(reply)
        after = resident(pair, OTHER)
        connections = await observer.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )
        assert connections <= 2 * (8 + 2)
        await sessions[3].close()
        async with asyncio.timeout(30):
            for number in range(3, count, 10):
                assert b"session.closed" in await streams[number].read()
        return before, after


async def test_two_hundred_open_streams_are_cheap(pair: Installation) -> None:
    """A thousand of their kind stay below 300 MiB."""
    before, after = await open_streams(pair, 200)
    each = (after - before) / 200
    print(f"{each / 1024:.0f} KiB a stream, on {before / 2**20:.0f} MiB")
    assert before + 1000 * each < 300 << 20


@pytest.mark.soak
async def test_a_thousand_open_streams_take_less_than_300_mib(pair: Installation) -> None:
    before, after = await open_streams(pair, 1000)
    print(f"1,000 streams: {after / 2**20:.0f} MiB, {before / 2**20:.0f} before them")
    assert after < 300 << 20
