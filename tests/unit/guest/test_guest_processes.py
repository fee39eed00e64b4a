"""Processes of a real guest: zygotes, keepers, Session processes, and what they leave behind. [C3], [S13], [S14]."""

from __future__ import annotations

import json
import os
import pwd
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.guest.guest_host import Host, alive

pytestmark = pytest.mark.anyio


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def result_of(host: Host, channel: int, attribute: str, **members: object) -> object:
    host.start(channel, attribute, **members)
    host.turn(channel, "t")
    return (await host.settled(channel, "t"))["result"]


async def test_a_killed_session_process_is_reported_at_once_with_what_it_said(tmp_path: Path) -> None:
    """[S14]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(3, "sleeper")
        host.turn(3, "t")
        await host.seen(3, "turn.output")
        os.kill((await host.seen(0, "scope.started", channel=3))["pid"], signal.SIGKILL)
        assert await host.seen(0, "scope.exited", channel=3) == {"t": "scope.exited", "channel": 3, "signal": 9}


@pytest.mark.parametrize("by", ["kill", "death"])
async def test_the_end_of_a_scope_ends_double_forked_daemons_and_no_other_session(tmp_path: Path, by: str) -> None:
    """[C3] [S13]: the daemon has another session, no environment, and init as its parent, so to say"""
    async with Host(tmp_path) as host:
        await host.attached()
        made = await result_of(host, 1, "daemons")
        others = await result_of(host, 2, "daemons")
        assert all(alive(pid) for made_by in (made, others) for pid in made_by.values())
        if by == "kill":
            host.say(0, {"t": "scope.kill", "channel": 1})
        else:
            os.kill(made["own"], signal.SIGKILL)
        await host.seen(0, "scope.exited", channel=1)
        assert not any(alive(pid) for pid in made.values())
        assert all(alive(pid) for pid in others.values())


async def test_a_killed_keeper_does_not_let_its_scope_escape(tmp_path: Path) -> None:
    """[C3]: root in the Computer may kill anything below pid 1"""
    async with Host(tmp_path) as host:
        await host.attached()
        made = await result_of(host, 1, "daemons")
        os.kill(parent(made["own"]), signal.SIGKILL)
        assert (await host.seen(0, "scope.exited", channel=1))["signal"] == 9
        assert not alive(made["own"]) and not alive(made["child"])


async def test_a_stopped_keeper_does_not_hold_up_a_kill(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        made = await result_of(host, 1, "daemons")
        os.kill(parent(made["own"]), signal.SIGSTOP)
        host.say(0, {"t": "scope.kill", "channel": 1})
        await host.seen(0, "scope.exited", channel=1)
        assert not any(alive(pid) for pid in made.values())


async def test_a_killed_zygote_harms_no_session_and_is_replaced(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        made = await result_of(host, 1, "daemons")
        zygote = parent(parent(made["own"]))
        os.kill(zygote, signal.SIGKILL)
        host.turn(1, "u")
        await host.settled(1, "u")
        await host.until_true(lambda: not Path(f"/proc/{zygote}").exists())
        assert await result_of(host, 2, "never_cancelled") == "fine"
        host.say(0, {"t": "scope.kill", "channel": 1})
        await host.seen(0, "scope.exited", channel=1)
        assert not any(alive(pid) for pid in made.values())


async def test_a_scope_killed_before_it_started_ends(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "echo")
        host.say(0, {"t": "scope.kill", "channel": 1})
        assert (await host.seen(0, "scope.exited", channel=1))["signal"] == 9


async def test_session_processes_inherit_no_descriptors(tmp_path: Path) -> None:
    """DESIGN 6: stdio, the channel and the loop's own; none of the zygote, the supervisor or another Session"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "sleeper")
        host.turn(1, "t")
        await host.seen(1, "turn.output")
        found = await result_of(host, 2, "descriptors")
        assert isinstance(found, dict)
        assert found["0"] == "/dev/null" and found["1"].startswith("pipe:") and found["2"].startswith("pipe:")
        rest = sorted(target.partition(":")[0] for number, target in found.items() if int(number) > 2)
        # The channel, the loop's epoll and its self-pipe; the listing itself may show its own descriptor.
        assert [kind for kind in rest if not kind.startswith("/proc")] == ["anon_inode", "socket", "socket", "socket"]


async def test_preloaded_modules_are_shared_and_nothing_random_is(tmp_path: Path) -> None:
    """DESIGN 6"""
    random.seed(1)
    async with Host(tmp_path) as host:
        await host.attached()
        facts = [await result_of(host, n, "facts", preload=["helper"], env={"COLOUR": "blue"}, cwd=str(tmp_path)) for n in (1, 2)]
        first, second = json.loads(json.dumps(facts))
        assert first["preloaded"] == second["preloaded"] not in (False, first["pid"], second["pid"])
        assert first["random"] != second["random"]
        assert (first["env"], first["cwd"], first["source"]) == ("blue", str(tmp_path), "api_key")


@pytest.mark.parametrize("preload", ["threaded_helper", "no_such_module"])
async def test_a_zygote_that_cannot_be_forked_is_replaced_by_a_plain_one(tmp_path: Path, preload: str) -> None:
    """DESIGN 6: one with a second thread isn't forked"""
    async with Host(tmp_path) as host:
        await host.attached()
        facts = await result_of(host, 1, "facts", preload=[preload, "helper"])
        assert isinstance(facts, dict) and facts["preloaded"] is False


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
async def test_a_session_process_takes_on_its_user(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        nobody = pwd.getpwnam("nobody")
        # All is imported before the user changes: a checkout under root's home can't be read by others.
        facts = await result_of(host, 1, "facts", user="nobody", preload=["agents.agents"])
        assert isinstance(facts, dict) and facts["uid"] == nobody.pw_uid


async def test_an_unknown_user_fails_the_start_and_says_why(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "facts", user="no-such-user")
        assert (await host.seen(0, "scope.exited", channel=1))["code"] == 72
        await host.until(lambda: "no-such-user" in "".join(f["text"] for f in host.said if f["t"] == "log"), "the reason")


async def test_the_supervisor_ends_everything_when_it_is_told_to(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        made = await result_of(host, 1, "daemons")
        assert host.process is not None
        host.process.send_signal(signal.SIGTERM)
        assert await host.process.wait() == 0
        assert not any(alive(pid) for pid in made.values())


def test_a_thread_that_is_ending_is_waited_for_before_threads_are_counted() -> None:
    """What preloading has joined makes no zygote unfit because the kernel still lists it."""
    code = (
        "import threading\nfrom helmr.guest.processes import threads, threads_left\n"
        "gate = threading.Event()\nthread = threading.Thread(target=gate.wait)\nthread.start()\n"
        "staying = threads(), threads_left(0.02)\n"
        "threading.Timer(0.02, gate.set).start()\nprint(*staying, threads_left(10))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["2", "2", "1"]
