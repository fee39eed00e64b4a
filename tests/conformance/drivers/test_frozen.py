"""Sleep by freezing: hostd killed on the way there and on the way back, and memory that goes to swap. [C6], [C3]."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jail import Jail
from killed import lives_through

from helmr.host.sandbox import paging

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root", "bubblewrap-user")]


async def test_a_hostd_that_is_killed_at_any_step_of_freezing_or_thawing_loses_nothing(jail: Jail) -> None:
    """Two steps of each way: what is done to the processes, and what is on disk of it."""
    await lives_through(jail, {"frozen": "sleep", "frozen_told": "sleep", "thawed_told": "wake", "thawed": "wake"})


@pytest.fixture
def swap(folder: Path) -> Iterator[None]:
    """A host with swap, as far as this test goes."""
    place = folder / "swap"
    try:
        with place.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 300 << 20)
        place.chmod(0o600)
        subprocess.run(["mkswap", "-q", str(place)], check=True)
        subprocess.run(["swapon", str(place)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no swap can be had here: {error}")
    yield
    subprocess.run(["swapoff", str(place)], check=True)


@pytest.mark.soak
@pytest.mark.kinds("bubblewrap-root")
async def test_memory_of_a_frozen_computer_goes_to_swap_and_comes_back(jail: Jail, swap: None) -> None:
    """[C6]: a soak, since it changes the host. Limits hold on a host with swap, too."""
    await jail.start("c1", memory=256 << 20)
    await jail.client.create_scope("c1", 1)
    code = """
import os, hashlib
held = os.urandom(64 << 20)
digest = hashlib.sha256(held).hexdigest()
while True:
    os.makedirs('/workspace/told', exist_ok=True)
    open('/workspace/told/new', 'w').write(digest + ' ' + hashlib.sha256(held).hexdigest())
    os.rename('/workspace/told/new', '/workspace/told/digests')
    while not os.path.exists('/workspace/again'):
        os.sched_yield()
    os.unlink('/workspace/again')
"""
    told = "os.path.exists('/workspace/told/digests') and open('/workspace/told/digests').read().split()"
    async with jail.inside("c1") as inmate:
        await inmate.run(code, scope=1, wait=False)
        while not await inmate.value(told):
            pass
    before = (await jail.client.stats("c1"))["memory"]
    slept = await jail.client.hibernate("c1", 1)
    assert slept["rung"] == "freeze" and slept["paged_out"] > 48 << 20
    assert (await jail.client.stats("c1"))["memory"] < before - (48 << 20)
    await jail.client.wake("c1", 1)
    async with jail.inside("c1") as inmate:
        await inmate.value("os.unlink('/workspace/told/digests')")
        await inmate.value("open('/workspace/again', 'w').close()")
        while not (found := await inmate.value(told)):
            pass
        assert found[0] == found[1]
        await jail.client.create_scope("c1", 2)
        assert (await inmate.run("held = bytearray(b'x') * (400 << 20)", scope=2)).exit == -9
    assert (await jail.client.end_scope("c1", 2))["oom"] is not None


async def test_without_swap_a_frozen_computer_says_nothing_of_it(jail: Jail) -> None:
    """[C6]."""
    if paging.free_swap() > paging.SPARED:
        pytest.skip("this host has swap")
    await jail.start("c1")
    assert "paged_out" not in await jail.client.hibernate("c1", 1)
