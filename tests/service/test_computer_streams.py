"""Streams in the control plane: woken for, kept awake by, bounded, and over when any way to them is lost. SPEC [C8], [C6], [O1]; I4."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest
from tests.service.scripted import house
from tests.service.test_sleeping import asleep, computer_of, residency, until_residency

from helmr.control.service import stream_run
from helmr.control.service.stream_run import StreamRun
from helmr.control.upkeep.command_ends import CommandEnds
from helmr.protocol.errors import (
    ComputerNotFound,
    ComputerUnreachable,
    Forbidden,
    InvalidValue,
    PathNotFound,
    StreamBroken,
    StreamsExhausted,
)
from helmr.protocol.ids import new_id
from helmr.protocol.streams import STREAMS, WINDOW_BYTES, StreamError, data_payload, word

pytestmark = pytest.mark.anyio


async def opened(h, computer, kind="shell", **opening):
    stream = await h.plane.streams.open(h.principal, computer, kind, opening)
    return stream, await h.host.next_stream()


async def warm(h):
    session, _ = await h.warm()
    return await computer_of(h, session)


async def rows(h):
    async with h.database.connection() as connection:
        return await connection.fetchval("SELECT count(*) FROM computer_streams")


async def until_no_rows(h):
    async with asyncio.timeout(5):
        while await rows(h):
            await asyncio.sleep(0.005)  # a commit in the background gives this test no event


async def test_a_stream_wakes_its_computer_and_keeps_it_awake_until_it_is_closed(database, tmp_path):
    """[C6]: the same by hand, by pressure, and by the rule that nobody works there."""
    async with house(database, tmp_path) as h:
        _, _, computer = await asleep(h)
        stream, end = await opened(h, computer, argv=["sh"])
        assert end.opened == {"kind": "shell", "argv": ["sh"]}
        end.word("ready")
        await stream.begin()
        assert not await h.plane.sleeping.begin(computer)
        stream.send(b"ls\n")
        assert (await end.heard("data"))["data"] == b"ls\n"
        end.send(b"out")
        assert await stream.receive() == b"out"
        stream.taken(3)
        assert (await end.heard("credit"))["bytes"] == 3
        h.plane.streams.close(stream)
        await end.heard("hangup")
        end.die("exited", code=0)
        await until_no_rows(h)
        assert await h.plane.sleeping.begin(computer)
        await until_residency(h, computer, "hibernated")
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT used_at IS NOT NULL FROM computers WHERE id = $1", computer)


@pytest.mark.parametrize(("answered", "seconds"), [(False, 15.0), (True, 900.0)])
async def test_a_tunnel_counts_for_a_while_after_its_last_bytes(database, tmp_path, monkeypatch, answered, seconds):
    """[C6]: 15 seconds, or 15 minutes if those were the Computer's; then its Computer sleeps, and it is over."""
    now = [1000.0]
    async with house(database, tmp_path) as h:
        computer = await warm(h)
        monkeypatch.setattr(stream_run, "time", SimpleNamespace(monotonic=lambda: now[0]))
        stream, end = await opened(h, computer, "forward", port=80)
        end.word("ready")
        await stream.begin()
        stream.send(b"GET")
        await end.heard("data")
        if answered:
            end.send(b"200")
            assert await stream.receive() == b"200"
        now[0] += seconds - 1
        await h.plane.streams.renew()
        assert not await h.plane.sleeping.begin(computer)
        now[0] += 1
        await h.plane.streams.renew()
        assert await h.plane.sleeping.begin(computer)
        await until_residency(h, computer, "hibernated")
        assert await stream.receive() is None and isinstance(stream.error, StreamBroken)
        h.plane.streams.close(stream)
        await until_no_rows(h)


async def test_streams_of_a_control_plane_that_is_gone_keep_nothing_awake_and_are_forgotten(database, tmp_path):
    async with house(database, tmp_path) as h:
        computer = await warm(h)
        stream, _ = await opened(h, computer)
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computer_streams SET lease_until = now() - interval '2 minutes'")
        assert await h.plane.sleeping.begin(computer)
        await CommandEnds(h.plane).run()
        assert await rows(h) == 0
        h.plane.streams.close(stream)


@pytest.mark.parametrize("offence", ["more than the window", "an unknown word", "words without end", "a stored frame", "no message"])
async def test_a_scope_that_breaks_the_protocol_is_ended_with_its_stream(database, tmp_path, offence):
    """I4"""
    async with house(database, tmp_path) as h:
        computer = await warm(h)
        stream, end = await opened(h, computer)
        if offence == "more than the window":
            for _ in range(WINDOW_BYTES // 32768 + 1):
                end.send(b"x" * 32768)
        elif offence == "an unknown word":
            end.word("surprise")
        elif offence == "words without end":
            for _ in range(100):
                end.word("ready")
        elif offence == "a stored frame":
            end.say("ready")
        else:
            end.send(b"x" * 40_000)
        assert (await h.host.told("session.kill"))["channel"] == end.channel
        async with asyncio.timeout(5):
            while await stream.receive() is not None:
                continue
        assert isinstance(stream.error, StreamBroken)
        h.plane.streams.close(stream)


async def test_a_lost_link_ends_streams_and_what_served_them(database, tmp_path):
    """I6: nothing of a stream is repeated; a channel that nobody knows any more is killed."""
    async with house(database, tmp_path) as h:
        computer = await warm(h)
        stream, end = await opened(h, computer)
        h.host.disconnect()
        async with asyncio.timeout(5):
            assert await stream.receive() is None
        assert isinstance(stream.error, StreamBroken)
        h.plane.streams.close(stream)
        h.host.connect()
        assert (await h.host.told("session.kill"))["channel"] == end.channel


async def test_a_failure_is_told_as_what_it_is_and_an_early_end_as_a_broken_stream(database, tmp_path):
    async with house(database, tmp_path) as h:
        computer = await warm(h)
        for members, error in (({"code": "path_not_found", "message": "no"}, PathNotFound), ({"code": "made_up"}, StreamBroken)):
            stream, end = await opened(h, computer, "read", path="x", form="file")
            end.word("failed", **members)
            with pytest.raises(error):
                await stream.begin()
            h.plane.streams.close(stream)
        stream, end = await opened(h, computer, "read", path="x", form="file")
        end.die("exited", code=1)
        with pytest.raises(StreamBroken):
            await stream.begin()
        h.plane.streams.close(stream)


async def test_who_may_not_or_asks_for_too_much_opens_none(database, tmp_path):
    """[O1]: a foreign Computer is an unknown one."""
    async with house(database, tmp_path) as h:
        computer = await warm(h)
        foreign = dataclasses.replace(h.principal, environment_id=new_id())
        for principal, id, error in (
            (h.principal, new_id(), ComputerNotFound),
            (h.principal, "x", ComputerNotFound),
            (foreign, computer, ComputerNotFound),
            (dataclasses.replace(h.principal, kind="session"), computer, Forbidden),
            (dataclasses.replace(h.principal, permissions=frozenset({"computers.read"})), computer, Forbidden),
        ):
            with pytest.raises(error):
                await h.plane.streams.open(principal, id, "shell", {})
        with pytest.raises(InvalidValue):
            await h.plane.streams.open(h.principal, computer, "shell", {"env": {"HELMR_X": "1"}})
        streams = [(await opened(h, computer))[0] for _ in range(STREAMS)]
        with pytest.raises(StreamsExhausted):
            await h.plane.streams.open(h.principal, computer, "shell", {})
        for stream in streams:
            h.plane.streams.close(stream)


async def test_a_control_plane_without_the_workers_link_says_so_at_once(database, tmp_path):
    async with house(database, tmp_path) as h:
        computer = await warm(h)
        other = new_id()
        async with h.database.connection() as connection:
            await connection.execute("INSERT INTO control_planes (id) VALUES ($1)", other)
            await connection.execute("UPDATE workers SET control_plane = $1", other)
        h.host.disconnect()
        with pytest.raises(ComputerUnreachable):
            async with asyncio.timeout(5):
                await h.plane.streams.open(h.principal, computer, "shell", {})
        await until_no_rows(h)
        assert await residency(h, computer) == "running"


async def test_a_client_keeps_to_its_window() -> None:
    run = StreamRun("id", "computer", "shell", lambda: None)
    run.send(b"x" * WINDOW_BYTES)
    with pytest.raises(StreamError):
        run.send(b"x")
    with pytest.raises(StreamError):
        run.taken(1)
    run.hear(word("credit", bytes=10))
    assert await run.receive() == {"t": "credit", "bytes": 10}
    run.send(b"x" * 10)
    run.hear(data_payload(b"abc"))
    run.taken(3)
