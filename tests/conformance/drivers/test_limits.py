"""Limits that the host enforces, and how a kill by them is told [C2], [S14]."""

from __future__ import annotations

import time

import pytest
from jail import Jail

from helmr.host.sandbox.cgroups import find_hierarchies

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root"), pytest.mark.soaked("docker")]

MIB = 1 << 20


def needs(controller: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_hierarchies().version(controller) is None, reason=f"this host has no {controller} controller for us")


@pytest.mark.also("docker")
@needs("memory")
async def test_a_scope_beyond_the_memory_limit_is_killed_and_told_with_limit_and_peak(jail: Jail) -> None:
    await jail.start("c1", memory=64 * MIB)
    await jail.client.create_scope("c1", 1)
    await jail.client.create_scope("c1", 2)
    async with jail.inside("c1") as inmate:
        assert (await inmate.run("held = bytearray(200 << 20); print('held')", scope=1)).exit == -9
        ended = await jail.client.end_scope("c1", 1)
        assert ended["oom"]["limit"] == 64 * MIB
        assert 48 * MIB <= ended["oom"]["peak"] <= 66 * MIB  # the kernel overshoots by a batch
        # Neither the supervisor nor the other scope has anything to do with it.
        assert (await inmate.run("print('fine')", scope=2)).out == "fine"
        assert (await jail.client.end_scope("c1", 2))["oom"] is None


@pytest.mark.also("docker")
@needs("memory")
async def test_what_a_scope_writes_to_shared_memory_counts(jail: Jail) -> None:
    await jail.start("c1", memory=64 * MIB)
    await jail.client.create_scope("c1", 1)
    async with jail.inside("c1") as inmate:
        assert (
            await inmate.run("f = open('/dev/shm/x', 'wb')\nfor _ in range(200): f.write(bytes(1 << 20))\nprint('held')", scope=1)
        ).exit == -9


@pytest.mark.also("docker")
@needs("pids")
async def test_a_fork_bomb_stays_within_the_process_limit_and_ends_with_its_scope(jail: Jail) -> None:
    await jail.start("c1", pids=30)
    await jail.client.create_scope("c1", 1)
    code = (
        "import os, time\nn = 0\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(1000)\n"
        "    except BlockingIOError:\n        break\n    n += 1\nprint(n, flush=True)\nos._exit(0)"
    )
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    async with jail.inside("c1") as inmate:
        assert int((await inmate.run(code + "", scope=1, wait=False)).out) > 0
        await jail.client.create_scope("c1", 2)
        await inmate.run(bomb, scope=2, wait=False)
        deadline = time.monotonic() + 10
        while (await jail.client.stats("c1"))["pids"] < 30:
            assert time.monotonic() < deadline
        for channel in (1, 2):
            await jail.client.end_scope("c1", channel)
        # Pid 1 reaps with each request; the controller counts what isn't reaped.
        deadline = time.monotonic() + 10
        while (await jail.client.stats("c1"))["pids"] > 3:
            assert await inmate.value("'alive'") == "alive"
            assert time.monotonic() < deadline


@pytest.mark.also("docker")
@needs("cpu")
async def test_a_scope_gets_no_more_processor_time_than_the_template_says(jail: Jail) -> None:
    await jail.start("c1", cpu=0.25)
    await jail.client.create_scope("c1", 1)
    async with jail.inside("c1") as inmate:
        code = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
        used = float((await inmate.run(code, scope=1)).out)
    assert used <= 1.5 * 0.25 * 1.6


async def test_stats_count_what_the_computer_uses(jail: Jail) -> None:
    await jail.start("c1")
    stats = await jail.client.stats("c1")
    assert stats["memory"] > 0
    assert stats["memory_peak"] >= stats["memory"] * 0.5
    assert stats["cpu_seconds"] > 0
    assert stats["pids"] == (1 if jail.driver == "docker" else 2)  # pid 1, and bubblewrap's outer process
    assert stats["oom_kills"] == 0
