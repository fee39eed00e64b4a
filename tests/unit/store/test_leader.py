"""Duties: one leader, an interval on an injected clock, failures that end nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from structlog.testing import capture_logs

from helmr.control.store.leader import Upkeep, UpkeepConfig
from helmr.protocol.errors import DatabaseUnavailable

Bounded = Callable[[], AbstractAsyncContextManager[object]]


class Locks:
    """One table of locks, as the database has it; `owner` is a process."""

    def __init__(self, table: dict[tuple[int, int], str], owner: str) -> None:
        self._table, self._owner = table, owner
        self.down = False

    async def try_lock(self, kind: int, thing: int) -> bool:
        if self.down:
            raise DatabaseUnavailable()
        return self._table.setdefault((kind, thing), self._owner) == self._owner

    async def unlock(self, kind: int, thing: int) -> None:
        if self._table.get((kind, thing)) == self._owner:
            del self._table[kind, thing]


class Clock:
    """Waits until the test says so, and tells for how long it was asked."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[float] = asyncio.Queue()
        self._passes: asyncio.Queue[None] = asyncio.Queue()

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        self.asked.put_nowait(seconds)
        passed = asyncio.ensure_future(self._passes.get())
        woken = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait([passed, woken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            passed.cancel()
            woken.cancel()

    def advance(self) -> None:
        self._passes.put_nowait(None)


class Sweep:
    """A duty that does what the test tells it."""

    name = "sweep"
    interval = 10.0

    def __init__(self) -> None:
        self.runs = 0
        self.results: list[bool | Exception] = []

    async def run(self) -> bool:
        self.runs += 1
        result = self.results.pop(0) if self.results else False
        if isinstance(result, Exception):
            raise result
        return result


EXACT = UpkeepConfig(jitter=0.0)


async def test_a_duty_runs_once_an_interval(bounded: Bounded) -> None:
    duty, clock = Sweep(), Clock()
    upkeep = Upkeep([duty], Locks({}, "a"), clock=clock, config=EXACT)
    await upkeep.start()
    async with bounded():
        assert await clock.asked.get() == 10.0
        assert duty.runs == 1
        clock.advance()
        await clock.asked.get()
        assert duty.runs == 2
    await upkeep.stop()


async def test_of_two_control_planes_one_runs_a_duty_and_the_other_takes_over(bounded: Bounded) -> None:
    table: dict[tuple[int, int], str] = {}
    first, second = Sweep(), Sweep()
    clock, other_clock = Clock(), Clock()
    leader = Upkeep([first], Locks(table, "a"), clock=clock)
    follower = Upkeep([second], Locks(table, "b"), clock=other_clock)
    async with bounded():
        await leader.start()
        await clock.asked.get()
        await follower.start()
        await other_clock.asked.get()
        assert (first.runs, second.runs) == (1, 0)
        await leader.stop()
        other_clock.advance()
        await other_clock.asked.get()
        assert (first.runs, second.runs) == (1, 1)
    await follower.stop()


async def test_more_work_runs_at_once_without_the_interval(bounded: Bounded) -> None:
    duty, clock = Sweep(), Clock()
    duty.results = [True, True, False]
    upkeep = Upkeep([duty], Locks({}, "a"), clock=clock)
    await upkeep.start()
    async with bounded():
        await clock.asked.get()
    await upkeep.stop()
    assert duty.runs == 3


async def test_a_nudge_ends_the_wait(bounded: Bounded) -> None:
    duty, clock = Sweep(), Clock()
    upkeep = Upkeep([duty], Locks({}, "a"), clock=clock)
    await upkeep.start()
    async with bounded():
        await clock.asked.get()
        upkeep.nudge("sweep")
        await clock.asked.get()
    await upkeep.stop()
    assert duty.runs == 2


async def test_a_failing_duty_is_said_and_tried_less_and_less_often(bounded: Bounded) -> None:
    duty, clock = Sweep(), Clock()
    duty.results = [ValueError("broken"), ValueError("broken"), False]
    upkeep = Upkeep([duty], Locks({}, "a"), clock=clock, config=EXACT)
    with capture_logs() as logs:
        await upkeep.start()
        async with bounded():
            waits = [await clock.asked.get()]
            for _ in range(2):
                clock.advance()
                waits.append(await clock.asked.get())
        await upkeep.stop()
    assert waits == [20.0, 40.0, 10.0]
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["a duty failed"] * 2


async def test_a_missing_database_is_waited_for(bounded: Bounded) -> None:
    duty, clock, locks = Sweep(), Clock(), Locks({}, "a")
    locks.down = True
    upkeep = Upkeep([duty], locks, clock=clock)
    await upkeep.start()
    async with bounded():
        await clock.asked.get()
        assert duty.runs == 0
        locks.down = False
        clock.advance()
        await clock.asked.get()
    await upkeep.stop()
    assert duty.runs == 1


def test_two_duties_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same lock"):
        Upkeep([Sweep(), Sweep()], Locks({}, "a"))
