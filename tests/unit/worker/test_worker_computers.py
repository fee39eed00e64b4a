"""Computers, leases, images, draining: the worker's answers to the control plane and to hostd [C9], [C10], [D5], I6, I8."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.unit.worker.scripted_host import GIB

from helmr.host.worker.conversation import Conversation
from helmr.host.worker.ports import HostdRefused
from helmr.objects import File, write_listing
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.link import control, split
from helmr.protocol.manifest import ImageManifest, ImageStep
from helmr.protocol.wire import to_wire

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Rig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio


async def test_hello_offers_eight_times_the_cores_and_most_of_the_memory(rig: Rig) -> None:
    hello = rig.control.told[0]
    assert hello["t"] == "hello" and hello["protocol"] == 1 and hello["computers"] == []
    worker = hello["worker"]
    assert (worker["cpu"], worker["memory"]) == (16.0, 8 * GIB)
    assert (worker["name"], worker["driver"], worker["base"], worker["draining"]) == ("rig", "scripted", "b", False)
    assert is_id(worker["id"]) and worker["version"]


async def test_the_capacity_offered_is_the_operators_when_given_and_the_id_stays(local_rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        local_rig.config = replace(local_rig.config, cpu=3.5, memory=GIB)
        await local_rig.start_worker()
        await local_rig.stop_worker()
        await local_rig.start_worker()
        first, second = (told["worker"] for told in local_rig.control.told if told["t"] == "hello")
        assert (first["cpu"], first["memory"]) == (3.5, GIB)
        assert first["id"] == second["id"]


async def test_a_computer_is_started_from_its_image_with_the_copied_blobs_at_hand(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        blob = await rig.blobs.store.put(b"hello\n")
        listing = await rig.blobs.store.put(write_listing({"motd": File(blob=blob, size=6)}))
        steps = (ImageStep(kind="copy", dest="/etc", blob=listing), ImageStep(kind="run", argv=("true",)))
        rig.template = replace(rig.template, image=ImageManifest(name="x", base="host", steps=steps))
        await rig.start_computer()
        (ensured,) = rig.hostd.called("image.ensure")
        assert ensured["image"]["steps"][0]["blob"] == listing
        assert {path.name: path.read_bytes() for path in Path(ensured["blobs"]).iterdir()} == {
            blob: b"hello\n",
            listing: write_listing({"motd": File(blob=blob, size=6)}),
        }
        (started,) = rig.hostd.called("computer.start")
        assert started["layers"] == ["layer-1"] and started["fence"] == 1 and started["environment"] == rig.environment


@pytest.mark.parametrize("method", ["image.ensure", "computer.start"])
async def test_a_computer_that_cannot_be_made_is_reported_with_the_reason(rig: Rig, method: str, bounded: Bounded) -> None:
    async with bounded():
        rig.hostd.refuse[method] = HostdRefused("image_failed", "Step 2 exited with 1.")
        rig.control.send("computer.start", computer=rig.computer, fence=4, environment=rig.environment, template=to_wire(rig.template))
        state = await rig.control.expect("computer.state", state="failed")
        assert state["fence"] == 4 and state["error"] == {"code": "image_failed", "message": "Step 2 exited with 1."}


async def test_a_malformed_template_is_answered_and_not_dropped(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        rig.control.send("computer.start", computer=rig.computer, fence=4, environment=rig.environment, template={"id": 3})
        assert (await rig.control.expect("computer.state", state="failed"))["error"]["code"] == "message_invalid"


async def test_an_attach_of_a_computer_that_does_not_run_or_has_another_fence_is_answered(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        rig.control.send("computer.attach", computer=rig.computer, fence=1, slot=5, acked={})
        assert (await rig.control.expect("computer.state", state="failed"))["error"]["code"] == "computer_not_running"
        await rig.start_computer()
        rig.control.send("computer.attach", computer=rig.computer, fence=0, slot=5, acked={})
        assert (await rig.control.expect("computer.state", state="failed"))["error"]["code"] == "fence_stale"
        await rig.attach()


async def test_a_supervisor_that_is_slow_to_connect_is_waited_for(rig: Rig, bounded: Bounded) -> None:
    """A host under load must not cost a Computer: only a supervisor that stays silent is reported."""
    async with bounded():
        supervisor = await rig.start_computer()
        rig.hostd.refuse["computer.attach"] = HostdRefused("supervisor_silent", "It did not connect.")
        rig.control.send("computer.attach", computer=rig.computer, fence=1, slot=5, acked={})
        await rig.hostd.until(lambda: len(rig.hostd.called("computer.attach")) == 2)
        del rig.hostd.refuse["computer.attach"]
        await rig.control.expect("computer.attached", slot=5)
        assert supervisor.streams == 1
        rig.hostd.refuse["computer.attach"] = HostdRefused("supervisor_silent", "It did not connect.")
        rig.control.send("computer.attach", computer=rig.computer, fence=1, slot=6, acked={})
        assert (await rig.control.expect("computer.state", state="failed"))["error"]["code"] == "supervisor_silent"


async def test_start_attach_and_session_may_be_sent_in_one_breath(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        bundle = await rig.bundle()
        rig.control.send("computer.start", computer=rig.computer, fence=1, environment=rig.environment, template=to_wire(rig.template))
        rig.control.send("computer.attach", computer=rig.computer, fence=1, slot=5, acked={})
        rig.start_session(7, bundle)
        await rig.control.expect("session.started", channel=7)


async def test_a_computer_that_ends_takes_its_sessions_with_it(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        await rig.session(7)
        rig.hostd.computers.clear()
        rig.hostd.notify("computer.exited", computer=rig.computer, fence=1, signal=9, oom={"limit": 10, "peak": 11})
        state = await rig.control.expect("computer.state", state="gone")
        assert (state["reason"], state["error"]["code"]) == ("exited", "out_of_memory")
        exited = await rig.control.expect("session.exited", channel=7)
        assert (exited["cause"], exited["signal"], exited["limit"]) == ("out_of_memory", 9, 10)


async def test_the_end_of_an_earlier_life_does_not_end_the_present_one(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        rig.hostd.notify("computer.exited", computer=rig.computer, fence=0, code=0)
        supervisor.say(7, b"alive")
        await rig.control.until(lambda: bool(rig.control.frames.get(5)))
        assert not [told for told in rig.control.told if told["t"] == "computer.state" and told["state"] == "gone"]


@pytest.mark.parametrize(("kind", "reason"), [("computer.stop", "stopped"), ("computer.destroy", "destroyed")])
async def test_stopping_and_destroying_end_the_sessions_and_are_confirmed(rig: Rig, kind: str, reason: str, bounded: Bounded) -> None:
    async with bounded():
        await rig.session(7)
        rig.control.send(kind, computer=rig.computer, fence=1)
        exited = await rig.control.expect("session.exited", channel=7)
        assert (exited["cause"], exited["ended"]) == ("killed", 3)
        state = await rig.control.expect("computer.state", state="gone")
        assert state["reason"] == reason
        assert rig.hostd.called(kind) == [{"computer": rig.computer, "fence": 1}]
        # Both are idempotent: asked again, the answer comes again.
        rig.control.send(kind, computer=rig.computer, fence=1)
        assert (await rig.control.expect("computer.state", state="gone"))["reason"] == reason


async def test_destroying_a_computer_gives_up_its_start(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        rig.hostd.hold["image.ensure"] = asyncio.Event()
        rig.control.send("computer.start", computer=rig.computer, fence=1, environment=rig.environment, template=to_wire(rig.template))
        await rig.hostd.until(lambda: bool(rig.hostd.called("image.ensure")))
        rig.control.send("computer.destroy", computer=rig.computer, fence=1)
        assert (await rig.control.expect("computer.state"))["reason"] == "destroyed"
        assert not rig.hostd.called("computer.start")


async def test_leases_reach_hostd_shortened_by_the_time_that_the_answer_took(rig: Rig, bounded: Bounded) -> None:
    rig.control.leased = [rig.computer]
    async with bounded():
        assert rig.worker is not None and rig.worker._conversation is not None
        rig.worker._conversation.renew()
        await rig.hostd.until(lambda: any(rig.computer in lease["computers"] for lease in rig.hostd.called("lease")))
        lease = rig.hostd.called("lease")[-1]
        assert lease["computers"] == [rig.computer] and 59 < lease["seconds"] <= 60


async def test_a_lease_counts_from_when_it_was_asked_for_and_is_dropped_when_it_comes_too_late() -> None:
    now = 100.0
    leased: list[tuple[list[str], float]] = []

    class Duties:
        def waits(self, waits: object) -> None: ...

        def standing(self) -> dict[str, object]:
            return {}

        def leased(self, computers: list[str], seconds: float) -> None:
            leased.append((computers, seconds))

        def handle(self, kind: str, message: object) -> bool:
            return False

        def frames(self, slot: int, frames: bytes) -> None: ...

        def drained(self) -> None: ...

    class Silent:
        queued_bytes = 0

        def send(self, message: bytes) -> None: ...

        def close(self, reason: str = "") -> None: ...

    conversation = Conversation(Duties(), clock=lambda: now)
    conversation._link = Silent()
    conversation.renew()
    now = 145.0
    conversation.on_message(control("renewed", lease_seconds=60, computers=["a"]))
    conversation.renew()
    now = 206.0
    conversation.on_message(control("renewed", lease_seconds=60, computers=["a"]))
    assert leased == [(["a"], 15.0)]


async def test_a_control_plane_that_answers_no_renewal_is_left(local_rig: Rig, bounded: Bounded) -> None:
    local_rig.control.renew_seconds = 0.02
    local_rig.control.answers_renew = False
    async with bounded():
        await local_rig.start_worker()
        await local_rig.control.until(lambda: local_rig.control.links >= 2)
        assert local_rig.control.closed >= 1


async def test_a_control_plane_that_does_not_answer_hello_is_left(local_rig: Rig, bounded: Bounded) -> None:
    local_rig.config = replace(local_rig.config, welcome_seconds=0.02)
    local_rig.control.answers_hello = False
    async with bounded():
        starting = asyncio.ensure_future(local_rig.start_worker())
        await local_rig.control.until(lambda: local_rig.control.links >= 2)
        local_rig.control.answers_hello = True
        await starting


async def test_a_refusal_is_told_in_the_words_of_the_control_plane(local_rig: Rig, bounded: Bounded) -> None:
    """[D5]: another link protocol, say; the link is left, and asked for again later."""
    local_rig.control.refuses_hello = "This control plane speaks link protocol 2, the worker 1."
    async with bounded():
        with capture_logs() as said:
            starting = asyncio.ensure_future(local_rig.start_worker())
            await local_rig.control.until(lambda: local_rig.control.closed >= 1)
        starting.cancel()
    assert [line["error"] for line in said if line["event"] == "link.unavailable"] == [local_rig.control.refuses_hello]


async def test_a_hostd_of_before_histories_is_told_fences_as_numbers(local_rig: Rig, bounded: Bounded) -> None:
    """[D5], I11: it runs on while its worker is renewed; what its Computers do is not ended for that."""
    local_rig.control.incarnation = new_id()
    async with bounded():
        await local_rig.start_worker()
        await local_rig.start_computer()
        await local_rig.attach()
        assert "history" not in local_rig.control.told[0] and not local_rig.hostd.called("history.enter")
        assert [call["fence"] for name in ("computer.start", "computer.attach") for call in local_rig.hostd.called(name)] == [1, 1]
        assert local_rig.control.count("hello") == 1


async def test_a_hostd_with_histories_follows_the_control_planes(local_rig: Rig, bounded: Bounded) -> None:
    """I11: what it is told is of that incarnation; on the link a fence is a number."""
    incarnation = local_rig.control.incarnation = new_id()
    local_rig.hostd.history = {"current": None, "superseded": []}
    async with bounded():
        await local_rig.start_worker()
        await local_rig.control.expect("history.entered")
        await local_rig.start_computer()
        await local_rig.attach()
        assert local_rig.hostd.called("history.enter") == [{"incarnation": incarnation}]
        fences = [call["fence"] for name in ("computer.start", "computer.attach") for call in local_rig.hostd.called(name)]
        assert fences == [[incarnation, 1], [incarnation, 1]]
        assert [told["fence"] for told in local_rig.control.told if told["t"] == "computer.state"] == [1]


async def test_hostd_may_restart_under_a_running_session(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        rig.hostd.away = True
        rig.hostd.drop()
        supervisor.say(7, b"while hostd is away")
        await rig.control.until(lambda: bool(rig.control.frames.get(5)))
        supervisor.exit(7, code=0)
        rig.hostd.away = False
        exited = await rig.control.expect("session.exited", channel=7)
        assert exited["cause"] == "exited"
        assert len(rig.hostd.connections) >= 2


async def test_a_computer_that_ended_while_hostd_was_away_is_found_out(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        await rig.session(7)
        rig.hostd.computers.clear()
        rig.hostd.drop()
        assert (await rig.control.expect("computer.state", state="gone"))["reason"] == "exited"
        assert (await rig.control.expect("session.exited", channel=7))["cause"] == "exited"


async def test_a_request_whose_connection_breaks_is_asked_again(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        rig.hostd.hold["image.ensure"] = asyncio.Event()
        rig.control.send("computer.start", computer=rig.computer, fence=1, environment=rig.environment, template=to_wire(rig.template))
        await rig.hostd.until(lambda: len(rig.hostd.called("image.ensure")) == 1)
        rig.hostd.drop()
        await rig.hostd.until(lambda: len(rig.hostd.called("image.ensure")) == 2)
        rig.hostd.hold["image.ensure"].set()
        await rig.control.expect("computer.state", state="running")


async def test_hostd_being_away_for_long_is_an_answer(local_rig: Rig, bounded: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bounded():
        worker = await local_rig.start_worker()
        monkeypatch.setattr(worker.gate, "_away_seconds", 0.05)
        local_rig.hostd.away = True
        local_rig.hostd.drop()
        local_rig.control.send(
            "computer.start", computer=local_rig.computer, fence=1, environment=local_rig.environment, template=to_wire(local_rig.template)
        )
        state = await local_rig.control.expect("computer.state", state="failed")
        assert state["error"]["code"] == "host_unavailable"


async def test_an_image_is_built_with_its_log_and_its_failure_is_told(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        request = new_id()
        rig.control.send("image.build", request=request, environment=rig.environment, image=to_wire(rig.template.image))
        assert (await rig.control.expect("image.log", request=request))["text"] == "step 1\n"
        assert (await rig.control.expect("image.built", request=request))["layers"] == ["layer-1"]
        rig.hostd.refuse["image.ensure"] = HostdRefused("image_failed", "Step 1 exited with 2.")
        rig.control.send("image.build", request="again", environment=rig.environment, image=to_wire(rig.template.image))
        assert (await rig.control.expect("image.built", request="again"))["error"]["code"] == "image_failed"


async def test_hostd_is_told_which_files_of_a_bundle_an_image_must_import(rig: Rig, bounded: Bounded) -> None:
    """[D2]: with the bundle laid out; one that can't be fetched fails the build."""
    async with bounded():
        blob = await rig.blobs.store.put(b"x = 1\n")
        bundle = await rig.blobs.store.put(write_listing({"agents/a.py": File(blob=blob, size=6)}))
        wanted = {"environment": rig.environment, "image": to_wire(rig.template.image)}
        rig.control.send("image.build", request="one", **wanted, imports={"bundle": bundle, "files": ["agents/a.py"]})
        await rig.control.expect("image.built", request="one")
        (ensured,) = rig.hostd.called("image.ensure")
        assert (ensured["imports"]["digest"], ensured["imports"]["files"]) == (bundle, ["agents/a.py"])
        assert (Path(ensured["imports"]["path"]) / "agents/a.py").read_bytes() == b"x = 1\n"
        rig.control.send("image.build", request="two", **wanted, imports={"bundle": "0" * 64, "files": ["agents/a.py"]})
        assert (await rig.control.expect("image.built", request="two"))["error"]["code"] == "blob_not_found"


@pytest.mark.ud("UD-16")
async def test_a_draining_worker_takes_nothing_new_and_lets_its_sessions_end(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        assert rig.worker is not None
        draining = asyncio.ensure_future(rig.worker.drain())
        await rig.control.expect("renew", draining=True)
        rig.start_session(8, "0" * 64)
        assert (await rig.control.expect("session.exited", channel=8))["error"]["code"] == "worker_draining"
        rig.control.send("computer.start", computer=new_id(), fence=1, environment=rig.environment, template=to_wire(rig.template))
        assert (await rig.control.expect("computer.state", state="failed"))["error"]["code"] == "worker_draining"
        assert not draining.done()
        supervisor.exit(7, code=0)
        await draining


@pytest.mark.ud("UD-16")
async def test_draining_ends_at_its_limit_and_ends_no_computer(local_rig: Rig, bounded: Bounded) -> None:
    local_rig.config = replace(local_rig.config, drain_seconds=0.05)
    async with bounded():
        worker = await local_rig.start_worker()
        await local_rig.session(7)
        await worker.drain()
        await local_rig.stop_worker()
        assert not local_rig.hostd.called("computer.stop") and not local_rig.hostd.called("scope.end")
        assert local_rig.computer in local_rig.hostd.computers


async def test_messages_of_a_newer_or_broken_control_plane_are_passed_over(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        assert rig.control.link is not None
        rig.control.send("computer.teleport", computer=rig.computer)
        rig.control.send("session.kill", computer=rig.computer)
        rig.control.send("session.kill", computer=rig.computer, channel="x")
        rig.control.link.send(b"\0\0")
        rig.control.link.send(b"\0\0\0\0{")
        rig.control.link.send(b"\0\0\0\0[1]")
        await rig.start_computer()


async def test_start_and_stop_are_idempotent_and_leave_no_task(local_rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        worker = await local_rig.start_worker()
        await worker.start()
        await local_rig.session(7)
        await worker.stop()
        await worker.stop()
        left = {task.get_name() for task in asyncio.all_tasks()}
        assert not left & {"worker", "hostd", "worker-link"}
    assert split(control("x"))[0] == 0
