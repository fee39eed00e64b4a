"""Memory that goes to disk while a Computer sleeps, and comes back [C6], I9: the image rung, in the driver that has it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jail import Inmate, Jail
from killed import Way, in_the_clear, lives_through

from helmr.host.hostd.client import HostdRefused
from helmr.host.sandbox.crowds import marks
from helmr.host.sandbox.identity import descendants

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("gvisor")]

RESIDENT = (Path(__file__).parent / "resident.py").read_text()
ASK = "__import__('json').load(__import__('urllib.request').request.urlopen('http://127.0.0.1:8123/', timeout=20))"
KEY = base64.b64encode(bytes(range(32))).decode()
SLEEPER = "import time\ntime.sleep(3600)"


async def move_in(inmate: Inmate) -> Mapping[str, Any]:
    """Start the resident; what it tells once it listens."""
    await inmate.run(RESIDENT, wait=False, scope=1)
    listens = "any(line.split()[3] == '0A' and line.split()[1].endswith(':1FBB') for line in open('/proc/net/tcp').readlines()[1:])"
    async with asyncio.timeout(30):
        while not await inmate.value(listens):
            await asyncio.sleep(0.02)
    return await inmate.value(ASK)


async def live_through(jail: Jail, cycles: int) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        first = await move_in(inmate)
        pid1 = await inmate.value("os.getppid()")
    before = first
    for number in range(2, cycles + 2):
        slept = await jail.client.hibernate("c1", 1)
        assert (slept["rung"], slept["kept"]) == ("image", ["memory", "files"])
        assert slept["image_bytes"] > 1 << 20
        assert not jail.processes("c1") and not jail.cgroups("c1"), "it has no process, and so no memory"
        assert (await jail.client.wake("c1", 1))["rung"] == "image"
        async with jail.inside("c1") as inmate:
            now = await inmate.value(ASK)
            assert await inmate.value("os.getppid()") == pid1
        for name in ("pid", "started", "heap", "tree", "threads"):
            assert now[name] == first[name], name
        assert (now["count"], now["child"], now["pty"], now["held"]) == (number, f"CHILD {number}", f"pty {number}", f"held {number}")
        assert now["ticks"] >= before["ticks"]
        # The wall clock is the host's: it has counted the sleep.
        assert before["wall"] < now["wall"] <= time.time() + 1
        before = now
    log = jail.state / "computers/c1/disk/upper/workspace/log"
    assert log.read_text().split() == [str(number) for number in range(1, cycles + 2)]


async def test_servers_children_terminals_timers_and_connections_go_on_over_sleeps(jail: Jail) -> None:
    """[C6]: the same processes with the same memory, three times; nothing is started again."""
    await live_through(jail, 3)


@pytest.mark.soak
async def test_twenty_sleeps_in_a_row_keep_everything(jail: Jail) -> None:
    """[C6]."""
    await live_through(jail, 20)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_two_hundred_that_sleep_have_no_process_and_are_found_and_woken_as_ten_are(jail: Jail) -> None:
    """[C6]: also by a hostd that was started since. What either takes is compared with itself, within the noise of a busy host."""
    taken: dict[int, tuple[float, float]] = {}
    pids: dict[str, int] = {}
    for wanted in (10, 200):
        for computer in [f"c{number}" for number in range(len(pids), wanted)]:
            await jail.start(computer)
            async with jail.inside(computer) as inmate:
                pids[computer] = int((await inmate.run(SLEEPER, wait=False)).out)
            assert (await jail.client.hibernate(computer, 1))["rung"] == "image"
        await jail.kill_hostd()
        await jail.open()
        asleep = [entry["computer"] for entry in (await jail.client.info())["computers"] if entry["state"] == "asleep"]
        assert len(asleep) == wanted and jail.hostd is not None and not descendants(jail.hostd.pid)
        assert not set(map(jail.mark, pids)) & marks() and not any(map(jail.cgroups, pids))
        listed = await quickest(jail.client.info, 10)
        woken = min([await woken_within(jail, f"c{number}", pids[f"c{number}"]) for number in range(3)])
        taken[wanted] = (listed, woken)
    assert taken[200][0] < taken[10][0] + 0.02 and taken[200][1] < 2 * taken[10][1], taken


async def quickest(asked: Callable[[], Awaitable[object]], times: int) -> float:
    laps: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await asked()
        laps.append(time.perf_counter() - began)
    return min(laps)


async def woken_within(jail: Jail, computer: str, pid: int) -> float:
    """Seconds until it answers and has its process still; it sleeps again."""
    began = time.perf_counter()
    await jail.client.wake(computer, 1)
    async with jail.inside(computer) as inmate:
        assert await inmate.value(f"os.kill({pid}, 0)") is None
    took = time.perf_counter() - began
    await jail.client.hibernate(computer, 1)
    return took


async def test_an_open_file_that_was_deleted_keeps_memory_in_memory_and_the_reply_says_so(jail: Jail) -> None:
    """[C6]: what could not be done is said; once the file is closed the next sleep is on disk."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        code = f"import os\nf = open('/workspace/gone', 'w')\nos.unlink('/workspace/gone')\nopen('/workspace/ready', 'w')\n{SLEEPER}"
        holder = (await inmate.run(code, wait=False)).out
        async with asyncio.timeout(20):
            while not await inmate.value("os.path.exists('/workspace/ready')"):
                await asyncio.sleep(0.01)
    slept = await jail.client.hibernate("c1", 1)
    assert slept["rung"] == "freeze"
    assert "deleted" in slept["reason"] and "/workspace/gone" in slept["reason"]
    assert (await jail.client.stats("c1"))["frozen"]
    assert not (jail.state / "computers/c1/memory").exists()
    await jail.client.wake("c1", 1)
    async with jail.inside("c1") as inmate:
        assert await inmate.value(f"os.kill({holder}, 9)") is None
    assert (await jail.client.hibernate("c1", 1))["rung"] == "image"
    await jail.client.wake("c1", 1)
    async with jail.inside("c1") as inmate:
        assert await inmate.value("6 * 7") == 42


async def test_memory_of_another_generation_processor_or_program_is_refused_and_the_files_start_anew(jail: Jail) -> None:
    """I9: each is told as memory that is not restored, nothing of it runs, and the Computer can be started."""
    record = jail.state / "computers/c1/spec.json"
    for fence, change in enumerate(({"generation": -1}, {"made_by": "runsc 1 on another processor"}), start=1):
        await jail.start("c1", fence)
        async with jail.inside("c1", fence) as inmate:
            await inmate.value("pathlib.Path('/workspace/kept').write_text('kept')")
            await inmate.run(SLEEPER, wait=False)
        assert (await jail.client.hibernate("c1", fence))["rung"] == "image"
        await jail.kill_hostd()
        stored = json.loads(record.read_text())
        stored["image"] |= change
        record.write_text(json.dumps(stored))
        await jail.open()
        with pytest.raises(HostdRefused) as refused:
            await jail.client.wake("c1", fence)
        assert refused.value.code == "memory_not_restored", refused.value
        assert (await jail.client.info())["computers"][0]["state"] == "stopped"
        assert not jail.processes("c1")
        assert not (jail.state / "computers/c1/memory").exists()
        await jail.start("c1", fence)
        async with jail.inside("c1", fence) as inmate:
            assert await inmate.value("open('/workspace/kept').read()") == "kept"
        await jail.client.stop("c1", fence)


async def test_a_damaged_image_is_refused_and_leaves_no_process(jail: Jail) -> None:
    """[C6], I9."""
    await jail.start("c1")
    await jail.client.hibernate("c1", 1)
    for file in (jail.state / "computers/c1/memory").iterdir():
        os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(HostdRefused) as refused:
        await jail.client.wake("c1", 1)
    assert refused.value.code == "memory_not_restored"
    assert not jail.processes("c1") and not jail.cgroups("c1")
    await jail.start("c1", 2)


async def test_memory_outlives_a_boot_of_the_host(jail: Jail) -> None:
    """[C6]: of what a boot takes away, mounts, gVisor's state and every process, nothing is needed."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        pid = (await inmate.run(SLEEPER, wait=False)).out
    await jail.client.hibernate("c1", 1)
    await jail.kill_hostd()
    shutil.rmtree(f"/run/helmr-gvisor/{jail.mark('c1')}", ignore_errors=True)
    (jail.state / "leases.json").write_text(json.dumps({"boot": "another", "ends": {}}))
    await jail.open()
    assert (await jail.client.wake("c1", 1))["rung"] == "image"
    async with jail.inside("c1") as inmate:
        assert await inmate.value(f"os.kill({pid}, 0)") is None


KEEPER = """
import time
secret = b"a secret of the sandbox" + b"!" * 1000
open("/dev/shm/kept", "wb").write(secret)
open("/workspace/ready", "w")
while True:
    time.sleep(0.05)
"""


async def test_memory_on_disk_opens_with_its_key_alone_and_one_without_a_key_is_refused_and_lost_to_nobody(jail: Jail) -> None:
    """[C6], [X1]: also when hostd is killed meanwhile. Another key is told as memory that is not restored."""
    key, other = KEY, base64.b64encode(bytes(32)).decode()
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        pid = (await inmate.run(KEEPER, wait=False)).out
        async with asyncio.timeout(20):
            while not await inmate.value("os.path.exists('/workspace/ready')"):
                await asyncio.sleep(0.02)
    for fence in (2, 3):
        slept = await jail.client.hibernate("c1", fence, key)
        image = [path.read_bytes() for path in (jail.state / "computers/c1/memory").iterdir()]
        assert slept["rung"] == "image" and sum(map(len, image)) == slept["image_bytes"] > 1 << 20
        assert not any(b"a secret of the sandbox" in data for data in image) and not in_the_clear(jail)
        if fence == 2:
            await jail.kill_hostd()
            await jail.open()
            with pytest.raises(HostdRefused) as refused:
                await jail.client.wake("c1", fence)
            assert refused.value.code == "invalid_request"
            assert (await jail.client.wake("c1", fence, key))["rung"] == "image"
            assert not in_the_clear(jail)
            async with jail.inside("c1", fence) as inmate:
                assert await inmate.value(f"[os.kill({pid}, 0), open('/dev/shm/kept').read()[:8]]") == [None, "a secret"]
    with pytest.raises(HostdRefused) as refused:
        await jail.client.wake("c1", 4, other)
    assert refused.value.code == "memory_not_restored" and not jail.processes("c1") and not in_the_clear(jail)


DOOR_TAKEN = """
import os, select, socket
os.unlink("/run/helmr/door.sock")
door = socket.socket(socket.AF_UNIX)
door.bind("/run/helmr/door.sock")
door.listen()
held = []
open("/workspace/ready", "w")
while True:
    guest, _ = door.accept()
    with guest:
        held += socket.recv_fds(guest, 64, 1)[1]
        guest.send(b"+")
"""
"""What root inside can do to its supervisor, which counts as guest: take the host's streams in its place, and keep them."""


async def test_a_guest_that_keeps_the_hosts_streams_stays_in_memory_and_the_reply_says_so(jail: Jail) -> None:
    """[C6], I4: it gains nothing but that; another Computer sleeps as ever."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        await inmate.run(DOOR_TAKEN, wait=False)
        async with asyncio.timeout(20):
            while not await inmate.value("os.path.exists('/workspace/ready')"):
                await asyncio.sleep(0.02)
    (await jail.client.attach("c1", 2)).close()
    slept = await jail.client.hibernate("c1", 2)
    assert (slept["rung"], slept["reason"]) == ("freeze", "a process of the Computer holds a stream of the host")
    assert (await jail.client.stats("c1"))["frozen"]
    await jail.client.wake("c1", 2)
    await jail.start("c2")
    assert (await jail.client.hibernate("c2", 1))["rung"] == "image"


POINTS: dict[str, Way] = dict.fromkeys(("paused", "written", "enciphered", "sealed", "recorded"), "sleep") | dict.fromkeys(
    ("waking", "deciphered", "launched", "restored"), "wake"
)
"""Where hostd is killed: five on the way to sleep, four on the way back."""


async def test_a_hostd_that_is_killed_at_any_step_of_sleep_or_wake_loses_nothing(jail: Jail) -> None:
    """[C6], [C3]: the next one has it awake or asleep with the same processes, never both and never neither."""
    await lives_through(jail, POINTS, KEY)
    assert not list((jail.state / "computers/c1").glob("*memory*"))
