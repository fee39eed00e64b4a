"""The event loop of guests: attendants beside all that asyncio does. DESIGN 7."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from helmr.guest.polling import READ, WRITE, GuestLoop, guest_loop, running_guest_loop

pytestmark = pytest.mark.anyio

SECONDS = 5.0


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": guest_loop}


async def test_an_attendant_hears_what_its_descriptor_is_ready_for_until_it_is_ended() -> None:
    loop = running_guest_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    heard: list[tuple[int, bytes]] = []
    came = asyncio.Event()

    def ready(events: int) -> None:
        heard.append((events, ours.recv(100) if events & READ else b""))
        came.set()

    with ours, theirs:
        loop.attend(ours.fileno(), READ, ready)
        theirs.send(b"a")
        async with asyncio.timeout(SECONDS):
            await came.wait()
            came.clear()
            loop.attend(ours.fileno(), READ | WRITE, ready)
            await came.wait()
        loop.attend(ours.fileno(), 0, ready)
        theirs.send(b"b")
        await _answered(loop)
        assert heard[0] == (READ, b"a") and heard[1] == (WRITE, b"")
        assert all(data != b"b" for _, data in heard)


async def test_what_is_scheduled_before_the_kernel_is_asked_runs_at_once() -> None:
    """Else a loop that has nothing else to do would wait for ever"""
    loop = running_guest_loop()
    seen = asyncio.Event()

    def before() -> bool:
        loop.call_soon(seen.set)
        loop.before_asking(lambda: False)
        return True

    loop.before_asking(before)
    async with asyncio.timeout(SECONDS):
        await seen.wait()


async def test_a_busy_loop_still_sees_events() -> None:
    """Passes that have something to run ask the kernel again after a millisecond"""
    loop = running_guest_loop()
    ours, theirs = socket.socketpair()
    came = asyncio.Event()
    with ours, theirs:
        loop.attend(ours.fileno(), READ, lambda _: came.set())
        theirs.send(b"x")
        async with asyncio.timeout(SECONDS):
            while not came.is_set():
                await asyncio.sleep(0)
        loop.attend(ours.fileno(), 0, lambda _: None)


async def test_an_attendant_that_raises_is_reported_and_the_loop_goes_on() -> None:
    loop = running_guest_loop()
    ours, theirs = socket.socketpair()
    reported: list[dict[str, Any]] = []
    told = asyncio.Event()

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reported.append(context)
        told.set()

    def broken(events: int) -> None:
        ours.recv(1)
        raise RuntimeError("broken attendant")

    handler = loop.get_exception_handler()
    loop.set_exception_handler(report)
    with ours, theirs:
        loop.attend(ours.fileno(), READ, broken)
        theirs.send(b"x")
        async with asyncio.timeout(SECONDS):
            await told.wait()
        loop.attend(ours.fileno(), 0, broken)
    loop.set_exception_handler(handler)
    assert [str(context["exception"]) for context in reported] == ["broken attendant"]


async def test_streams_subprocesses_timers_and_threads_work_as_ever() -> None:
    """What Agents do with asyncio in a Session process"""
    async with asyncio.timeout(SECONDS):
        child = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        assert await child.communicate(b"through a pipe") == (b"through a pipe", None) and child.returncode == 0
        assert await asyncio.to_thread(os.getpid) == os.getpid()

        async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readline()).upper())
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(upper, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"line\n")
            assert await reader.read() == b"LINE\n"
            writer.close()
            await writer.wait_closed()
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(0.03)
        assert asyncio.get_running_loop().time() - started >= 0.03


async def _answered(loop: GuestLoop) -> None:
    """The kernel has been asked again: a later event was seen."""
    first, second = socket.socketpair()
    seen = asyncio.Event()
    with first, second:
        loop.add_reader(first, seen.set)
        second.send(b"x")
        async with asyncio.timeout(SECONDS):
            await seen.wait()
        loop.remove_reader(first)
