"""The stream between supervisor and host: cut anywhere, slow, away. I5, I6, [E5]."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.unit.guest.guest_host import Host

from helmr.guest.polling import guest_loop
from helmr.guest.scope import KEPT_BYTES
from helmr.guest.uplink import CONGESTED_BYTES, Uplink

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop of guests, which parts of the supervisor need."""
    return "asyncio", {"loop_factory": guest_loop}


@pytest.mark.parametrize("seed", range(4))
async def test_a_stream_cut_at_any_byte_loses_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    """[E5]: receipts survive too, since lost ones are asked for again"""
    choose = random.Random(seed)
    async with Host(tmp_path) as host:
        host.cut_after = lambda: choose.choice([100, 900, 4000, 17, 30_000]) + choose.randrange(400) if host.hellos < 12 else None
        await host.attached()
        host.again_at_each_attach(lambda: host.start(1, "many"))
        host.again_at_each_attach(lambda: host.turn(1, "t", {"n": 400}))
        settled = await host.settled(1, "t")
        assert settled["result"] is True
        assert host.texts(1) == [str(n) for n in range(400)]
        assert host.hellos > 1


async def test_an_end_while_the_host_is_away_is_told_at_the_attach_until_forgotten(tmp_path: Path) -> None:
    """[S14]; frames first, then the end"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "exits")
        await host.seen(1, "init.done")
        host.attaching = False
        host.turn(1, "t")
        await host.drained()
        host.cut()
        await host.until(lambda: host.hellos == 2, "the reconnect")
        host.attach()
        assert (await host.seen(0, "scope.exited", channel=1))["code"] == 3
        host.said.clear()
        host.attach()
        await host.seen(0, "scope.exited", channel=1)
        host.said.clear()
        host.say(0, {"t": "scope.forget", "channel": 1})
        host.attach()
        host.say(0, {"t": "ping", "n": 5})
        await host.seen(0, "pong", n=5)
        assert host.find(0, "scope.exited", channel=1) is None


async def test_what_is_not_acknowledged_is_bounded_and_holds_the_session_back(tmp_path: Path) -> None:
    """DESIGN 7: the window is frames, the supervisor's memory is bytes; nothing is lost by either"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.acknowledging = False
        host.start(1, "big_pipe")
        host.turn(1, "t", {"n": 80})
        await host.until(lambda: sum(len(text) for text in host.texts(1)) >= KEPT_BYTES - 200_000, "a full window")
        host.say(0, {"t": "ping", "n": 1})
        await host.seen(0, "pong", n=1)
        held = len(host.texts(1))
        assert held < 64
        host.acknowledging = True
        host.say(1)
        assert (await host.settled(1, "t"))["status"] == "completed"
        assert len(host.texts(1)) == 80


async def test_a_host_that_does_not_read_loses_nothing(tmp_path: Path) -> None:
    """Back-pressure through the stream to the channels"""
    async with Host(tmp_path) as host:
        await host.attached()
        for channel in (1, 2, 3):
            host.start(channel, "big_pipe")
        for channel in (1, 2, 3):
            await host.seen(channel, "init.done")
        host.reading.clear()
        for channel in (1, 2, 3):
            host.turn(channel, "t", {"n": 70})
        await host.drained()
        host.reading.set()
        for channel in (1, 2, 3):
            assert (await host.settled(channel, "t"))["status"] == "completed"
            assert len(host.texts(channel)) == 70


async def test_unread_frames_come_before_the_end_of_their_scope(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "never")
        await host.seen(0, "scope.exited", channel=1)
        assert host.kinds(1) == ["init.failed"]


async def test_the_first_frame_tells_what_the_supervisor_knows(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(4, "echo")
        host.turn(4, "t", "x")
        await host.settled(4, "t")
        host.cut()
        await host.until(lambda: host.hellos == 2, "the reconnect")
        hello = [frame for frame in host.said if frame["t"] == "hello"][-1]
        assert hello["channels"]["4"]["alive"] is True and hello["channels"]["4"]["last_op"] == 3


async def test_a_congestion_that_one_write_clears_gives_room_again(tmp_path: Path) -> None:
    """A queue that grew past its bound and left whole must not leave channels unread for ever"""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "host.sock"))
    listener.listen()
    listener.setblocking(False)
    connected, room = asyncio.Event(), asyncio.Event()
    uplink = Uplink(
        str(tmp_path / "host.sock"),
        on_connected=connected.set,
        on_frames=lambda frames: None,
        on_lost=lambda: None,
        on_room=room.set,
    )
    uplink.connect()
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listener)
    async with asyncio.timeout(5):
        await connected.wait()
        uplink.send(bytes(CONGESTED_BYTES + 1))
        assert uplink.congested
        while not room.is_set():
            await loop.sock_recv(connection, 1 << 20)
    assert not uplink.congested
    connection.close()
    listener.close()
    uplink.close()
