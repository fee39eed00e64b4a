"""Session processes from start to their recorded end [C3], [S14]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

from helmr.host.worker.ports import HostdRefused
from helmr.protocol.errors import ConnectionFailed
from helmr.protocol.ids import new_id

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Rig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio


async def test_a_session_starts_with_its_bundle_its_scope_and_the_surroundings_of_its_image(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.start_computer()
        await rig.attach()
        bundle = await rig.bundle(b"agent = 1\n")
        rig.start_session(7, bundle)
        started = await rig.control.expect("session.started", channel=7)
        assert started["pid"] == 107 and started["computer"] == rig.computer
        (start,) = supervisor.starts
        inside = f"/opt/helmr/bundles/{bundle}"
        assert start["path"] == [inside]
        assert start["open"] == {"agent": "one", "bundle": inside}
        assert start["env"] == {"COLOUR": "blue", "SHAPE": "square", "TEAM": "x"}
        assert start["cwd"] == "/workspace/src" and start["user"] == "agent" and start["preload"] == ["json"]
        (made,) = rig.hostd.called("computer.bundle")
        assert made["digest"] == bundle
        assert (rig.folder / "worker" / "cache" / "bundles" / rig.environment / bundle / "agents" / "one.py").read_bytes() == b"agent = 1\n"
        methods = [method for method, _ in rig.hostd.calls]
        assert methods.index("computer.bundle") < methods.index("scope.create")


async def test_sessions_of_one_bundle_share_one_fetch_and_one_zygote(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.start_computer()
        await rig.attach()
        bundle = await rig.bundle()
        rig.blobs.hold = asyncio.Event()
        for channel in range(1, 9):
            rig.start_session(channel, bundle)
        rig.start_session(9, bundle, preload=["json", "csv"])
        await rig.blobs.asked.wait()
        rig.blobs.hold.set()
        await supervisor.until(lambda: len(supervisor.starts) == 9)
        assert len(rig.blobs.fetched) == 2
        zygotes = {start["channel"]: start["zygote"] for start in supervisor.starts}
        assert len({zygotes[channel] for channel in range(1, 9)}) == 1
        assert zygotes[9] != zygotes[1]


@pytest.mark.parametrize("failure", ["unknown", "unreachable", "not a listing", "cut short"])
async def test_a_bundle_that_cannot_be_had_is_reported_as_the_sessions_end(local_rig: Rig, failure: str, bounded: Bounded) -> None:
    rig = local_rig
    async with bounded():
        await rig.start_worker()
        await rig.start_computer()
        await rig.attach()
        bundle, code = await rig.bundle(), "blob_not_found"
        if failure == "unknown":
            bundle = "0" * 64
        elif failure == "unreachable":
            rig.blobs.fails[bundle] = ConnectionFailed("no route")
            code = "connection_failed"
        elif failure == "not a listing":
            bundle, code = await rig.blobs.store.put(b'{"files": {"../x": {}}}'), "listing_invalid"
        else:
            await rig.blobs.store.delete(await rig.blobs.store.put(b"agent = 1\n"))
        rig.start_session(7, bundle)
        exited = await rig.control.expect("session.exited", channel=7)
        assert (exited["cause"], exited["error"]["code"]) == ("failed", code)
        assert not rig.hostd.called("scope.create")
        # Nothing of the failure sticks: what is there now is found by the next Session.
        rig.blobs.fails.clear()
        if failure == "unreachable":
            rig.start_session(8, bundle)
            await rig.control.expect("session.started", channel=8)


@pytest.mark.parametrize("method", ["computer.bundle", "scope.create"])
async def test_a_refusal_of_hostd_is_reported_with_its_code(local_rig: Rig, method: str, bounded: Bounded) -> None:
    async with bounded():
        await local_rig.start_worker()
        await local_rig.start_computer()
        await local_rig.attach()
        local_rig.hostd.refuse[method] = HostdRefused("disk_full", "No space.")
        local_rig.start_session(7, await local_rig.bundle())
        exited = await local_rig.control.expect("session.exited", channel=7)
        assert exited["error"] == {"code": "disk_full", "message": "No space."}


async def test_an_end_is_reported_once_hostd_has_ended_what_was_left(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        rig.hostd.ends[7] = {"ended": 4, "seconds": 0.5}
        rig.hostd.hold["scope.end"] = asyncio.Event()
        supervisor.exit(7, code=3)
        await rig.hostd.until(lambda: bool(rig.hostd.called("scope.end")))
        assert not rig.control.count("session.exited")
        rig.hostd.hold["scope.end"].set()
        exited = await rig.control.expect("session.exited")
        assert exited == {
            "t": "session.exited",
            "computer": rig.computer,
            "channel": 7,
            "cause": "exited",
            "code": 3,
            "ended": 4,
            "seconds": 0.5,
        }


async def test_an_end_is_repeated_after_each_attach_until_it_is_forgotten(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        supervisor.exit(7, code=0)
        first = await rig.control.expect("session.exited", channel=7)
        attached = await rig.attach(slot=6)
        assert attached["channels"] == {"7": {"alive": False}}
        assert await rig.control.expect("session.exited", channel=7) == first
        assert len(rig.hostd.called("scope.end")) == 1
        rig.control.send("session.forget", computer=rig.computer, channel=7)
        await supervisor.until(lambda: not supervisor.exits)
        ends = rig.control.count("session.exited")
        assert (await rig.attach(slot=8))["channels"] == {}
        assert rig.control.count("session.exited") == ends


async def test_a_new_worker_learns_of_an_end_from_the_supervisor(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        await rig.stop_worker()
        supervisor.exit(7, signal=11)
        await rig.start_worker()
        await rig.attach(slot=6)
        exited = await rig.control.expect("session.exited", channel=7)
        assert (exited["cause"], exited["signal"]) == ("exited", 11)


@pytest.mark.parametrize(("signal", "cause"), [(9, "out_of_memory"), (None, "exited")])
async def test_only_a_session_process_that_was_the_victim_itself_ran_out_of_memory(
    local_rig: Rig, signal: int | None, cause: str, bounded: Bounded
) -> None:
    async with bounded():
        await local_rig.start_worker()
        supervisor = await local_rig.session(7)
        local_rig.hostd.ends[7] = {"oom": {"limit": 1000, "peak": 999}}
        supervisor.exit(7, **({"signal": signal} if signal else {"code": 1}))
        exited = await local_rig.control.expect("session.exited", channel=7)
        assert (exited["cause"], exited["limit"], exited["peak"]) == (cause, 1000, 999)


async def test_a_kill_ends_the_process_tree_and_is_reported_as_such(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        rig.hostd.ends[7] = {"ended": 5}
        rig.control.send("session.kill", computer=rig.computer, channel=7, reason="undrained")
        rig.control.send("session.kill", computer=rig.computer, channel=7, reason="undrained")
        exited = await rig.control.expect("session.exited", channel=7)
        assert (exited["cause"], exited["signal"], exited["ended"]) == ("killed", 9, 5)
        assert len(supervisor.heard("scope.kill")) == 1
        assert len(rig.hostd.called("scope.end")) == 1


async def test_a_kill_is_reported_though_the_supervisor_says_nothing(
    local_rig: Rig, bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmr.host.worker.scopes.EXIT_SECONDS", 0.05)
    async with bounded():
        await local_rig.start_worker()
        supervisor = await local_rig.session(7)
        supervisor.ignores.add("scope.kill")
        local_rig.control.send("session.kill", computer=local_rig.computer, channel=7, reason="stuck")
        exited = await local_rig.control.expect("session.exited", channel=7)
        assert (exited["cause"], exited["signal"]) == ("killed", 9)


async def test_a_kill_while_the_bundle_is_fetched_gives_the_start_up(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.start_computer()
        await rig.attach()
        rig.blobs.hold = asyncio.Event()
        rig.start_session(7, await rig.bundle())
        rig.control.send("session.kill", computer=rig.computer, channel=7, reason="cancelled")
        exited = await rig.control.expect("session.exited", channel=7)
        assert exited["cause"] == "killed"
        rig.blobs.hold.set()
        # The one that was killed led the making of the folder; the next Session makes it anew.
        rig.start_session(8, await rig.bundle())
        await rig.control.expect("session.started", channel=8)
        assert [start["channel"] for start in supervisor.starts] == [8]


async def test_a_kill_of_an_unknown_channel_is_answered(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        await rig.start_computer()
        rig.control.send("session.kill", computer=rig.computer, channel=99, reason="unknown")
        assert (await rig.control.expect("session.exited", channel=99))["cause"] == "killed"
        rig.control.send("session.forget", computer=rig.computer, channel=99)


async def test_a_start_that_was_lost_with_its_stream_is_sent_again(local_rig: Rig, bounded: Bounded) -> None:
    rig = local_rig
    async with bounded():
        await rig.start_worker()
        supervisor = await rig.start_computer()
        await rig.attach()
        supervisor.ignores.add("scope.start")
        rig.start_session(7, await rig.bundle())
        await supervisor.until(lambda: bool(supervisor.heard("scope.start")))
        supervisor.ignores.clear()
        supervisor.hang_up()
        attached = await rig.control.expect("computer.attached", slot=5)
        assert attached["channels"] == {"7": {"alive": True}}
        await rig.control.expect("session.started", channel=7)
        assert [start["channel"] for start in supervisor.starts] == [7]


async def test_a_start_that_is_under_way_survives_the_link(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.start_computer()
        await rig.attach()
        rig.blobs.hold = asyncio.Event()
        rig.start_session(7, await rig.bundle())
        await rig.blobs.asked.wait()
        assert rig.control.link is not None
        rig.control.link.close()
        await rig.control.expect("renew")
        assert rig.control.links == 2
        attached = await rig.attach(slot=3)
        assert attached["channels"] == {"7": {"alive": True}}
        rig.blobs.hold.set()
        await rig.control.expect("session.started", channel=7)
        assert len(supervisor.starts) == 1


async def test_a_channel_that_the_supervisor_no_longer_knows_is_over(local_rig: Rig, bounded: Bounded) -> None:
    rig = local_rig
    async with bounded():
        await rig.start_worker()
        supervisor = await rig.session(7)
        supervisor.channels.clear()
        supervisor.hang_up()
        attached = await rig.control.expect("computer.attached", slot=5)
        assert attached["channels"] == {"7": {"alive": False}}
        assert (await rig.control.expect("session.exited", channel=7))["cause"] == "exited"


async def test_a_repeated_start_starts_nothing_twice(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        rig.start_session(7, await rig.bundle())
        again = await rig.control.expect("session.started", channel=7)
        assert again["pid"] == 107 and len(supervisor.starts) == 1


async def test_a_scope_that_the_supervisor_cannot_start_is_reported_as_failed(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.start_computer()
        await rig.attach()
        supervisor.ignores.add("scope.start")
        rig.start_session(7, await rig.bundle())
        await supervisor.until(lambda: bool(supervisor.heard("scope.start")))
        supervisor.say_own("scope.failed", channel=7, message="no such user: agent")
        exited = await rig.control.expect("session.exited", channel=7)
        assert exited["error"] == {"code": "start_failed", "message": "no such user: agent"}
        assert rig.hostd.called("scope.end")


async def test_a_session_on_a_computer_that_is_not_here_is_answered(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        rig.control.send("session.start", computer=new_id(), channel=1, bundle="0" * 64, preload=[], environment={}, open={})
        assert (await rig.control.expect("session.exited", channel=1))["cause"] == "failed"


async def test_the_output_of_processes_reaches_the_control_plane_as_log(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        supervisor.say_own("log", channel=7, stream="stderr", text="Traceback\n")
        log = await rig.control.expect("session.log")
        assert (log["channel"], log["stream"], log["text"]) == (7, "stderr", "Traceback\n")


async def test_a_supervisor_cannot_invent_channels_without_end(local_rig: Rig, bounded: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helmr.host.worker.scopes.CHANNELS", 10)
    async with bounded():
        await local_rig.start_worker()
        supervisor = await local_rig.session(7)
        for channel in range(100, 120):
            supervisor.say_own("scope.started", channel=channel, pid=1)
        state = await local_rig.control.expect("computer.state", state="failed")
        assert state["error"]["code"] == "protocol_violated"
        assert json.dumps(state).count("channels") == 1
