"""The life of a Computer through hostd's socket, the same for every driver [C2], [C3], I8."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jail import Jail

from helmr.host.hostd.cleaning import clean
from helmr.host.hostd.client import HostdClient, HostdRefused
from helmr.host.sandbox.bubblewrap import GUEST_LOG
from helmr.protocol.manifest import TemplateManifest

pytestmark = [pytest.mark.anyio, pytest.mark.soaked("docker")]
whatever_driver = pytest.mark.kinds("bubblewrap-root", "bubblewrap-user", "process")
"""hostd's own doing, which one more driver says nothing new about."""

COUNTER = """\
import time
n = 0
while True:
    n += 1
    open({path!r}, "w").write(str(n))
    time.sleep(0.005)
"""


async def workspace(jail: Jail, computer: str) -> str:
    info = await jail.client.info()
    return next(entry["paths"]["workspace"] for entry in info["computers"] if entry["computer"] == computer)


async def counted(inmate, path: str) -> int:
    return int(await inmate.value(f"open({path!r}).read() or 0"))


async def until_counting(inmate, path: str) -> int:
    """The count once the counter has begun."""
    async with asyncio.timeout(10):
        begun = f"os.path.exists({path!r}) and open({path!r}).read() not in ('', '0')"
        while not await inmate.value(begun):
            await asyncio.sleep(0.01)
    return await counted(inmate, path)


@pytest.mark.also("docker")
async def test_a_started_computer_runs_its_pid_1_with_the_declared_environment_only(jail: Jail) -> None:
    os.environ["HELMR_TEST_SENTINEL"] = "host-secret"
    try:
        reply = await jail.start("c1")
        assert reply["state"] == "running"
        async with jail.inside("c1") as inmate:
            names = set(await inmate.value("list(os.environ)"))
    finally:
        del os.environ["HELMR_TEST_SENTINEL"]
    assert names <= {"PATH", "HOME", "LANG", "TERM", "LC_CTYPE", "HELMR_SANDBOX", "PWD", "LD_LIBRARY_PATH"}


async def test_files_persist_over_stop_and_start(jail: Jail) -> None:
    await jail.start("c1")
    path = f"{await workspace(jail, 'c1')}/kept"
    async with jail.inside("c1") as inmate:
        await inmate.value(f"pathlib.Path({path!r}).write_text('still here')")
    assert await jail.client.stop("c1", 1) >= 1
    assert jail.processes("c1") == set()
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert await inmate.value(f"pathlib.Path({path!r}).read_text()") == "still here"


@pytest.mark.kinds("bubblewrap-root", "bubblewrap-user", "docker")
async def test_a_pipe_that_a_guest_left_in_the_place_of_the_supervisors_log_keeps_no_computer_from_starting(jail: Jail) -> None:
    """[C2]: nobody reads from it, and nobody waits for that."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        await inmate.value(f"[os.unlink({GUEST_LOG!r}), os.mkfifo({GUEST_LOG!r})]")
    await jail.client.stop("c1", 1)
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert await inmate.value(f"pathlib.Path({GUEST_LOG!r}).is_fifo()")


@whatever_driver
async def test_start_of_a_running_computer_takes_the_new_fence_and_an_older_one_is_refused(jail: Jail) -> None:
    first = await jail.start("c1", 1)
    again = await jail.start("c1", 5)
    assert again["pid"] == first["pid"]
    for request in (jail.client.stop("c1", 4), jail.client.attach("c1", 4), jail.client.freeze("c1", 1), jail.client.destroy("c1", 2)):
        with pytest.raises(HostdRefused) as refused:
            await request
        assert refused.value.code == "fence_stale"
    assert (await jail.start("c1", 5))["pid"] == first["pid"]


@pytest.mark.also("docker")
async def test_destroy_removes_everything_and_may_be_repeated(jail: Jail) -> None:
    await jail.start("c1")
    assert await jail.client.destroy("c1", 1) >= 1
    assert await jail.client.destroy("c1", 1) == 0
    assert jail.processes("c1") == set()
    assert list((jail.state / "computers").iterdir()) == []
    assert not jail.cgroups("c1")
    assert str(jail.state / "computers") not in Path("/proc/self/mountinfo").read_text()
    with pytest.raises(HostdRefused) as refused:
        await jail.client.stats("c1")
    assert refused.value.code == "computer_not_found"


@pytest.mark.also("docker")
async def test_the_end_of_pid_1_is_told_with_its_code(jail: Jail) -> None:
    await jail.start("c1", 3)
    async with jail.inside("c1", 3) as inmate:
        await inmate.run("import os, signal; os.kill(os.getppid(), signal.SIGTERM)", wait=False)
        told = await jail.notice("computer.exited")
    assert told == {"computer": "c1", "fence": 3, "code": 0}
    assert (await jail.client.info())["computers"][0]["state"] == "stopped"
    assert jail.processes("c1") == set()


async def test_the_end_of_pid_1_by_a_signal_is_told_with_its_number(jail: Jail) -> None:
    reply = await jail.start("c1")
    os.kill(reply["pid"], signal.SIGKILL)
    assert (await jail.notice("computer.exited"))["signal"] == signal.SIGKILL


@pytest.mark.also("docker")
async def test_a_frozen_computer_stands_still_until_it_is_thawed(jail: Jail) -> None:
    await jail.start("c1")
    path = f"{await workspace(jail, 'c1')}/count"
    async with jail.inside("c1") as inmate:
        await inmate.run(COUNTER.format(path=path), wait=False)
        await until_counting(inmate, path)
        await jail.client.freeze("c1", 1)
        assert (await jail.client.stats("c1"))["frozen"]
        asked = asyncio.ensure_future(counted(inmate, path))
        assert not (await asyncio.wait([asked], timeout=0.3))[0]
        await jail.client.thaw("c1", 1)
        assert not (await jail.client.stats("c1"))["frozen"]
        before = await asked
        async with asyncio.timeout(5):
            while await counted(inmate, path) <= before:
                await asyncio.sleep(0.01)


async def test_a_frozen_computer_can_be_stopped(jail: Jail) -> None:
    await jail.start("c1")
    await jail.client.freeze("c1", 1)
    await jail.client.stop("c1", 1)
    assert jail.processes("c1") == set()


async def test_a_sleeping_computer_goes_on_with_the_same_processes_also_after_hostd_was_killed(jail: Jail) -> None:
    """[C6], [C3]: a child's counter stands still, also when hostd dies meanwhile, and goes on from where it was."""
    await jail.start("c1")
    path = f"{await workspace(jail, 'c1')}/count"
    async with jail.inside("c1") as inmate:
        await inmate.run(COUNTER.format(path=path), wait=False)
        await until_counting(inmate, path)
    before = jail.processes("c1")
    slept = await jail.client.hibernate("c1", 1)
    on_disk = jail.driver == "gvisor"
    assert slept["rung"] == ("image" if on_disk else "freeze") and slept["seconds"] >= 0
    assert on_disk != bool(slept.get("reason"))
    assert (await jail.client.hibernate("c1", 1))["rung"] == slept["rung"]
    if on_disk:
        assert not jail.processes("c1") and not jail.cgroups("c1")
    assert (await jail.client.info())["computers"][0]["state"] == "asleep"
    await jail.kill_hostd()
    await jail.open()
    assert (await jail.client.info())["computers"][0]["state"] == "asleep"
    await jail.client.lease(["c1"], 60)
    assert (await jail.client.info())["computers"][0]["state"] == "asleep", "a lease is no reason to wake"
    await jail.client.wake("c1", 1)
    assert (await jail.client.info())["computers"][0]["state"] == "running"
    assert on_disk or jail.processes("c1") == before
    async with jail.inside("c1") as inmate:
        seen = await counted(inmate, path)
        async with asyncio.timeout(5):
            while await counted(inmate, path) <= seen:
                await asyncio.sleep(0.01)


async def test_a_start_or_a_stop_of_a_sleeping_computer_does_what_it_says(jail: Jail) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        pid = (await inmate.run("import time\ntime.sleep(3600)", wait=False)).out
    await jail.client.hibernate("c1", 1)
    await jail.start("c1", 2)
    async with jail.inside("c1", 2) as inmate:
        assert await inmate.value(f"os.kill({pid}, 0)") is None, "the same processes go on"
    assert not (await jail.client.stats("c1"))["frozen"]
    await jail.client.hibernate("c1", 2)
    await jail.client.stop("c1", 2)
    assert jail.processes("c1") == set()
    with pytest.raises(HostdRefused) as refused:
        await jail.client.wake("c1", 2)
    assert refused.value.code == "computer_not_running"


async def test_a_computer_whose_lease_ends_stands_still_until_the_next(jail: Jail) -> None:
    """I8."""
    await jail.start("c1")
    await jail.client.lease(["c1"], 0.05)
    async with asyncio.timeout(5):
        while not (await jail.client.stats("c1"))["frozen"]:
            await asyncio.sleep(0.01)
    await jail.client.lease(["c1"], 60)
    assert not (await jail.client.stats("c1"))["frozen"]


async def test_a_lease_does_not_thaw_what_was_frozen_by_request(jail: Jail) -> None:
    await jail.start("c1")
    await jail.client.freeze("c1", 1)
    await jail.client.lease(["c1"], 60)
    assert (await jail.client.stats("c1"))["frozen"]


async def test_attaching_again_cuts_off_the_former_stream(jail: Jail) -> None:
    await jail.start("c1")
    former = await jail.client.attach("c1", 1)
    async with jail.inside("c1", 2) as inmate:
        assert await inmate.value("1 + 1") == 2
        async with asyncio.timeout(5):
            assert await asyncio.get_running_loop().sock_recv(former, 1) == b""
    former.close()


async def test_a_lost_worker_frees_the_stream_for_the_next(jail: Jail) -> None:
    await jail.start("c1")
    worker = await HostdClient.connect(jail.state / "hostd.sock")
    stream = await worker.attach("c1", 1)
    await worker.close()
    async with jail.inside("c1") as inmate:
        assert await inmate.value("40 + 2") == 42
    stream.close()


@pytest.mark.also("docker")
async def test_a_killed_hostd_ends_nothing_and_the_next_one_goes_on(jail: Jail) -> None:
    """[C3], [D4]: neither the Computers nor their processes notice; records, fences and limits are known again."""
    started = await jail.start("c1", 7)
    path = f"{await workspace(jail, 'c1')}/count"
    async with jail.inside("c1", 7) as inmate:
        await jail.client.create_scope("c1", 3)
        await inmate.run(COUNTER.format(path=path), scope=3, wait=False)
        await until_counting(inmate, path)
    await jail.kill_hostd()
    await jail.open()
    (entry,) = (await jail.client.info())["computers"]
    assert (entry["state"], entry["pid"], entry["fence"]) == ("running", started["pid"], 7)
    with pytest.raises(HostdRefused):
        await jail.client.attach("c1", 6)
    async with jail.inside("c1", 7) as inmate:
        before = await counted(inmate, path)
        async with asyncio.timeout(5):
            while await counted(inmate, path) <= before:
                await asyncio.sleep(0.01)
        assert (await jail.client.end_scope("c1", 3))["ended"] == 1
    os.kill(entry["pid"], signal.SIGKILL)
    assert (await jail.notice("computer.exited"))["fence"] == 7


async def test_a_computer_that_ended_without_a_hostd_is_found_stopped_and_cleaned(jail: Jail) -> None:
    started = await jail.start("c1")
    await jail.kill_hostd()
    os.kill(started["pid"], signal.SIGKILL)
    async with asyncio.timeout(5):
        while jail.processes("c1"):
            await asyncio.sleep(0.01)
    await jail.open()
    assert (await jail.client.info())["computers"][0]["state"] == "stopped"
    assert not jail.cgroups("c1")
    await jail.start("c1", 2)


async def test_a_hostd_killed_during_a_start_leaves_nothing_that_the_next_does_not_end(jail: Jail) -> None:
    await jail.start("c1")
    await jail.client.stop("c1", 1)
    for delay in (0.0, 0.005, 0.02):  # before, in, or just after the launch: how long that takes is the machine's matter
        starting = asyncio.ensure_future(jail.start("c1"))
        await asyncio.sleep(delay)
        await jail.kill_hostd()
        (outcome,) = await asyncio.gather(starting, return_exceptions=True)
        assert isinstance(outcome, dict | ConnectionError), outcome
        await jail.open()
        (entry,) = (await jail.client.info())["computers"]
        if entry["state"] == "stopped":
            assert jail.processes("c1") == set()
        else:
            assert entry["pid"] in jail.processes("c1")
            await jail.client.stop("c1", 1)


@pytest.mark.also("docker")
async def test_ending_a_scope_ends_its_daemons_and_touches_no_other(jail: Jail) -> None:
    """[C3]: double fork, a session of its own, the parent gone."""
    await jail.start("c1")
    here = await workspace(jail, "c1")
    daemon = (
        "import os, time\n"
        "for _ in range(2):\n    if os.fork(): os._exit(0)\n    os.setsid()\n"
        "n = 0\nwhile True:\n    n += 1; open({path!r}, 'w').write(str(n)); time.sleep(0.005)\n"
    )
    async with jail.inside("c1") as inmate:
        for channel in (1, 2):
            await jail.client.create_scope("c1", channel)
            await inmate.run(daemon.format(path=f"{here}/d{channel}"), scope=channel, wait=False)
            await until_counting(inmate, f"{here}/d{channel}")
        assert (await jail.client.end_scope("c1", 1))["ended"] == 1
        stood, moved = await counted(inmate, f"{here}/d1"), await counted(inmate, f"{here}/d2")
        async with asyncio.timeout(5):
            while await counted(inmate, f"{here}/d2") <= moved + 5:
                await asyncio.sleep(0.01)
        assert await counted(inmate, f"{here}/d1") == stood
        assert await jail.client.end_scope("c1", 1) == {"ended": 0, "seconds": pytest.approx(0, abs=1), "oom": None}


@whatever_driver
async def test_a_scope_that_was_not_created_takes_nobody(jail: Jail) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        said = await inmate.run("print('user code')", scope=99)
    assert said.exit == 1
    assert "refused" in said.out


async def test_a_bundle_appears_in_the_running_computer(jail: Jail, folder: Path) -> None:
    source = folder / "bundle"
    (source / "agents").mkdir(parents=True)
    (source / "agents/one.py").write_text("VALUE = 1\n")
    (source / "link.py").symlink_to("agents/one.py")
    digest = hashlib.sha256(b"bundle").hexdigest()
    await jail.start("c1")
    inside = await jail.client.bundle("c1", digest, source)
    assert await jail.client.bundle("c1", digest, source) == inside
    async with jail.inside("c1") as inmate:
        assert await inmate.value(f"open({inside!r} + '/link.py').read()") == "VALUE = 1\n"


@whatever_driver
@pytest.mark.parametrize("link", ["/etc/shadow", "../../secret", "agents/../../x"])
async def test_a_bundle_with_a_link_that_leaves_it_is_refused_whole(jail: Jail, folder: Path, link: str) -> None:
    source = folder / "bundle"
    source.mkdir()
    (source / "out").symlink_to(link)
    await jail.start("c1")
    with pytest.raises(HostdRefused) as refused:
        await jail.client.bundle("c1", "a" * 64, source)
    assert refused.value.code == "bundle_invalid"
    assert list((jail.state / "computers/c1/bundles").iterdir()) == []


@pytest.mark.kinds("process")
async def test_shutdown_ends_computers_of_a_history_that_was_left(jail: Jail) -> None:
    """I11: nobody of the present history has taken them over; whoever ends the host ends them all the same."""
    await jail.client.call("history.enter", {"incarnation": "one"})
    await jail.start("c1", ["one", 1])  # type: ignore[arg-type]
    await jail.client.call("history.enter", {"incarnation": "two"})
    assert await jail.client.shutdown(end_computers=True) >= 1
    assert jail.hostd is not None
    assert await asyncio.to_thread(jail.hostd.wait, 10) == 0
    assert jail.processes("c1") == set()
    await jail.open()
    await jail.client.destroy("c1", ["two", 1])


async def test_shutdown_with_computers_leaves_no_process(jail: Jail) -> None:
    for name in ("c1", "c2"):
        await jail.start(name)
    assert await jail.client.shutdown(end_computers=True) >= 2
    assert jail.hostd is not None
    assert await asyncio.to_thread(jail.hostd.wait, 10) == 0
    assert jail.processes("c1") | jail.processes("c2") == set()
    await jail.open()
    assert {entry["state"] for entry in (await jail.client.info())["computers"]} == {"stopped"}


async def test_clean_after_a_kill_removes_processes_and_folder(jail: Jail) -> None:
    """[D4]."""
    await jail.start("c1")
    await jail.kill_hostd()
    assert await clean(jail.state) == 0
    assert jail.processes("c1") == set()
    assert not jail.state.exists()
    jail.state.parent.chmod(0o777)
    await jail.open()


@whatever_driver
async def test_a_second_hostd_on_the_same_folder_is_refused(jail: Jail) -> None:
    command = [sys.executable, "-m", "helmr.host.hostd", "--state", str(jail.state), "--driver", jail.driver]
    refused = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 1
    assert "already_running" in refused.stderr
    assert (await jail.client.info())["driver"] == jail.driver


@whatever_driver
async def test_unknown_methods_and_bad_parameters_are_refused_by_name(jail: Jail) -> None:
    for method, params, code in (
        ("computer.teleport", {}, "unknown_method"),
        ("computer.stop", {"computer": 5, "fence": 1}, "invalid_request"),
        ("computer.start", {"computer": "../x", "fence": 1, "environment": "e", "template": {"id": "t"}}, "invalid_request"),
        ("computer.start", {"computer": "c", "fence": "one", "environment": "e", "template": {}}, "invalid_request"),
        ("scope.create", {"computer": "nobody", "channel": 1}, "computer_not_found"),
        ("lease", {"computers": "c", "seconds": 1}, "invalid_request"),
    ):
        with pytest.raises(HostdRefused) as refused:
            await jail.client.call(method, params)
        assert refused.value.code == code, method


@whatever_driver
async def test_a_computer_of_another_environment_or_other_layers_is_not_taken_over(jail: Jail) -> None:
    await jail.start("c1")
    from helmr.protocol.manifest import ImageManifest

    template = TemplateManifest(id="test", image=ImageManifest(name="test", base="host"))
    with pytest.raises(HostdRefused) as refused:
        await jail.client.start("c1", 2, environment="other", template=template)
    assert refused.value.code == "computer_mismatch"
