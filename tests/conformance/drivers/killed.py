"""A Computer whose hostd is killed again and again, each time right after another step of putting it to sleep or waking it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from jail import Jail

Way = Literal["sleep", "wake"]


async def lives_through(jail: Jail, points: Mapping[str, Way], key: str | None = None) -> None:
    """Each hostd finds what the one before it left: one Computer, asleep or awake, whose process goes on. `points` are those of
    `hostd_with_inmates.py`, with what is under way there."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        pid = (await inmate.run("import time\ntime.sleep(3600)", wait=False)).out
    await jail.kill_hostd()
    usual = jail.environment
    fence = 1
    for point, way in points.items():
        fence += 1
        jail.environment = {**usual, "DIE_AT": point}
        try:
            await jail.open()
        except AssertionError:
            # What a killed hostd held still the next one lets go on, first of all: that, too, is a step that it may die at.
            assert jail.hostd is not None and jail.hostd.poll() == -9, point
            continue
        state = await found(jail, point)
        if way == "sleep" and state == "asleep":
            await jail.client.wake("c1", fence, key)
        if way == "wake" and state == "running":
            await jail.client.hibernate("c1", fence, key)
        if way == "sleep":
            await answers(jail, fence, pid, point)
        with pytest.raises(ConnectionError):
            await (jail.client.hibernate("c1", fence, key) if way == "sleep" else jail.client.wake("c1", fence, key))
        assert jail.hostd is not None
        await asyncio.to_thread(jail.hostd.wait, 10)
        await jail.client.close()
    jail.environment = usual
    await jail.open()
    if await found(jail, "the last") == "asleep":
        await jail.client.wake("c1", fence, key)
    assert not (await jail.client.stats("c1"))["frozen"]
    await answers(jail, fence, pid, "the last")


async def found(jail: Jail, point: str) -> str:
    (entry,) = (await jail.client.info())["computers"]
    assert entry["state"] in ("running", "asleep"), (point, entry["state"])
    if jail.driver == "gvisor":
        assert not in_the_clear(jail), point
        assert bool(jail.cgroups("c1")) == (entry["state"] == "running"), point
    return str(entry["state"])


async def answers(jail: Jail, fence: int, pid: str, point: str) -> None:
    async with jail.inside("c1", fence) as inmate:
        assert await inmate.value(f"os.kill({pid}, 0)") is None, point


def in_the_clear(jail: Jail) -> list[Path]:
    """Where an image that is sealed on disk is open for a moment."""
    return [*Path("/dev/shm").glob(f"helmr-memory-{jail.mark('c1')}*"), *(jail.state / "computers/c1").glob("memory.open")]
