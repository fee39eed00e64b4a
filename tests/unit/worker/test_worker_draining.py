"""A worker that was told to go: what it waits for, what it says of that, and when it goes. UD-16, [C5]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from helmr.host.worker import draining

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Rig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio


@pytest.mark.ud("UD-16")
async def test_an_idle_process_holds_no_drain(local_rig: Rig, bounded: Bounded) -> None:
    """Its Computer sleeps by then: the control plane says that nothing is waited for."""
    said: list[str] = []
    async with bounded():
        worker = await local_rig.start_worker()
        await local_rig.session(7)
        local_rig.control.waits = {}
        await worker.drain(said.append)
        await local_rig.control.expect("leave")
    assert worker.live_sessions == 1
    assert said == ["Draining: takes nothing new, and waits at most 2 s for what runs.", "Drained: all here is saved and sleeps."]


@pytest.mark.ud("UD-16")
async def test_it_says_what_it_waits_for_as_that_changes_and_goes_when_it_is_over(
    local_rig: Rig, bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "LOOK_SECONDS", 0.001)
    local_rig.config = replace(local_rig.config, drain_seconds=30.0)
    said: list[str] = []
    heard = asyncio.Event()

    def hear(text: str) -> None:
        said.append(text)
        heard.set()

    async def until(count: int) -> None:
        while len(said) < count:
            heard.clear()
            await heard.wait()

    async with bounded():
        worker = await local_rig.start_worker()
        local_rig.control.waits = {"streams": 1, "turns": 2}
        drained = asyncio.ensure_future(worker.drain(hear))
        await until(2)
        local_rig.control.waits = {"saves": 1}
        await until(3)
        assert not local_rig.control.count("leave")
        local_rig.control.waits = {}
        await drained
    assert said[1:] == ["Waits for 2 Turns, 1 shell, copy or tunnel.", "Waits for 1 save.", "Drained: all here is saved and sleeps."]


@pytest.mark.ud("UD-16")
async def test_at_its_limit_it_goes_and_says_what_goes_on(local_rig: Rig, bounded: Bounded) -> None:
    local_rig.config = replace(local_rig.config, drain_seconds=0.05)
    said: list[str] = []
    async with bounded():
        worker = await local_rig.start_worker()
        worker.waits({"turns": 1})
        local_rig.control.answers_renew = False
        await worker.drain(said.append)
        await local_rig.control.expect("leave")
    assert said[-1] == "The time is over for 1 Turn: it goes on by itself, and the next worker takes it up."


@pytest.mark.ud("UD-16")
async def test_a_control_plane_that_hears_nothing_of_it_delays_it_for_a_moment_only(
    local_rig: Rig, bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D5]: one of before workers said that they go; and one that is away."""
    monkeypatch.setattr(draining, "LEAVE_SECONDS", 0.01)
    local_rig.config = replace(local_rig.config, drain_seconds=0.05)
    local_rig.control.answers_leave = False
    async with bounded():
        worker = await local_rig.start_worker()
        await worker.drain()
        await local_rig.control.expect("leave")
        local_rig.control.answers_renew = False
        await worker.drain()
        await local_rig.control.expect("leave")
