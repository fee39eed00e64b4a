"""Frames between Session processes and the control plane, whatever breaks in between [C3], I4, I6."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest
from tests.unit.worker.scripted_control import ScriptedControl
from tests.unit.worker.scripted_host import ScriptedSupervisor, own

from helmr.protocol.frames import HEADER, Frame, encode
from helmr.protocol.limits import FRAME_BYTES, MIB

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Rig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio


def ops(control: ScriptedControl, slot: int, channel: int) -> list[int]:
    return [frame.op for frame in control.frames.get(slot, []) if frame.channel == channel]


def stored(control: ScriptedControl, channel: int) -> list[bytes]:
    """What a control plane would have stored: each op once, in order, and no gap."""
    last, found = 0, []
    for kind, frame in control.order:
        if kind == "frame" and frame.channel == channel and frame.op > last:
            assert frame.op == last + 1, "an op is missing"
            last = frame.op
            found.append(frame.payload)
    return found


async def test_frames_go_up_and_down_as_they_are_and_in_order(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        said = [json.dumps({"t": "turn.output", "n": number}).encode() for number in range(500)]
        for payload in said:
            supervisor.say(7, payload)
        await rig.control.until(lambda: len(rig.control.frames.get(5, [])) == 500)
        assert rig.control.frames[5] == [Frame(7, number + 1, payload) for number, payload in enumerate(said)]
        rig.control.send_frames(5, encode(7, 500, b'{"t":"turn.start"}') + encode(7, 0, b"x" * 100_000))
        await supervisor.until(lambda: supervisor.down[-1] == Frame(7, 0, b"x" * 100_000))
        assert supervisor.down[-2] == Frame(7, 500, b'{"t":"turn.start"}')


async def test_a_stream_cut_at_random_bytes_loses_and_reorders_nothing(local_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(5)
    rig = local_rig
    monkeypatch.setattr("helmr.host.worker.attachment.REATTACH_LIMIT_SECONDS", 0.05)
    async with asyncio.timeout(30):
        await rig.start_worker()
        supervisor = await rig.session(7)
        supervisor.channels[8] = {"pid": 9, "alive": True, "last_op": 0}
        said: dict[int, list[bytes]] = {7: [], 8: []}
        for round_number in range(12):
            for _ in range(40):
                channel = random.choice((7, 8))
                payload = random.randbytes(random.choice((0, 10, 3000, 70_000)))
                said[channel].append(payload)
                supervisor.say(channel, payload)
            # The stream ends in the middle of a frame that will never be finished.
            if supervisor._writer is not None:
                supervisor.write(encode(7, 1 << 40, b"half a frame")[: random.randrange(1, 20)])
                await supervisor._writer.drain()
                supervisor.hang_up()
            await rig.control.until(lambda wanted=round_number + 2: rig.control.count("computer.attached") >= wanted)
        await rig.control.until(lambda: len(stored(rig.control, 7)) == len(said[7]) and len(stored(rig.control, 8)) == len(said[8]))
        assert stored(rig.control, 7) == said[7]
        assert stored(rig.control, 8) == said[8]


async def test_the_attachment_is_told_before_any_frame_and_carries_what_was_acknowledged(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.start_computer()
        supervisor.channels[3] = {"pid": 30, "alive": True, "last_op": 2}
        supervisor.channels[4] = {"pid": 40, "alive": False, "last_op": 0}
        for number in range(4):
            supervisor.say(3, b"%d" % number)
        attached = await rig.attach(slot=9, acked={"3": 2})
        assert attached["channels"] == {"3": {"alive": True}, "4": {"alive": False}}
        await rig.control.until(lambda: len(rig.control.frames.get(9, [])) == 2)
        assert rig.control.frames[9] == [Frame(3, 3, b"2"), Frame(3, 4, b"3")]
        assert supervisor.attaches == [{"t": "attach", "acked": {"3": 2}}]
        kinds = [kind for kind, _ in rig.control.order]
        assert kinds.index("computer.attached") < kinds.index("frame")


async def test_a_lost_link_loses_nothing_and_the_next_hello_lists_the_computers(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        supervisor.say(7, b"one")
        await rig.control.until(lambda: ops(rig.control, 5, 7) == [1])
        assert rig.control.link is not None
        rig.control.link.close("the control plane restarts")
        await supervisor.until(lambda: True)
        supervisor.say(7, b"two")
        hello = await rig.control.expect("hello")
        while not hello["computers"]:
            hello = await rig.control.expect("hello")
        assert hello["computers"] == [{"computer": rig.computer, "fence": 1, "state": "running"}]
        await rig.control.expect("renew")
        attached = await rig.attach(slot=1, acked={"7": 1})
        assert attached["channels"] == {"7": {"alive": True}}
        supervisor.say(7, b"three")
        await rig.control.until(lambda: ops(rig.control, 1, 7) == [2, 3])


async def test_a_new_worker_attaches_what_the_killed_one_left(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        supervisor.say(7, b"one")
        await rig.control.until(lambda: ops(rig.control, 5, 7) == [1])
        await rig.stop_worker()
        supervisor.say(7, b"two")
        rig.config.state.joinpath("worker-id").unlink()
        await rig.start_worker()
        await rig.attach(slot=2, acked={"7": 1})
        await rig.control.until(lambda: ops(rig.control, 2, 7) == [2])
        # The Template came from hostd, so the next Session finds its surroundings.
        rig.start_session(8, await rig.bundle(b"another = 1\n"))
        await rig.control.expect("session.started", channel=8)
        assert supervisor.starts[-1]["cwd"] == "/workspace/src"
        assert not rig.hostd.called("computer.stop") and not rig.hostd.called("computer.destroy")


async def test_a_frame_over_the_limit_ends_the_stream_and_fails_the_computer(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        streams = supervisor.streams
        supervisor.write(HEADER.pack(FRAME_BYTES + 1, 7, 2))
        state = await rig.control.expect("computer.state", state="failed")
        assert state["error"]["code"] == "protocol_violated"
        # It is attached again only when the control plane says so.
        await rig.attach(slot=6)
        assert supervisor.streams == streams + 1


@pytest.mark.parametrize(
    "said",
    [
        encode(7, 1, b"{}"),
        own({"t": "scope.started", "channel": 1, "pid": 1}),
        own({"t": "hello", "protocol": 1, "channels": {"-1": {}}}),
        own({"t": "hello", "protocol": 1}),
        own({"t": "hello", "protocol": 1, "channels": {"1": 3}}),
        encode(0, 0, b"[]"),
        encode(0, 0, b"{" * 5000),
        encode(0, 0, b"\xff"),
    ],
    ids=["a frame first", "no hello", "bad channel", "no channels", "bad fact", "no object", "no JSON", "no text"],
)
async def test_a_stream_that_does_not_begin_with_a_hello_fails_the_computer(local_rig: Rig, said: bytes, bounded: Bounded) -> None:
    async with bounded():
        await local_rig.start_worker()
        supervisor = await local_rig.start_computer()
        supervisor.hello = said
        local_rig.control.send("computer.attach", computer=local_rig.computer, fence=1, slot=5, acked={})
        state = await local_rig.control.expect("computer.state", state="failed")
        assert state["error"]["code"] == "protocol_violated"
        assert not local_rig.control.count("computer.attached")
        supervisor.hello = None
        await local_rig.attach(slot=6)


@pytest.mark.parametrize("protocol", [99, 0, -1, True, "1", None])
async def test_a_supervisor_of_a_protocol_that_is_not_spoken_is_ended_and_told(local_rig: Rig, protocol: object, bounded: Bounded) -> None:
    """[D5]: its Computer's next start renews it; nothing of it is heard."""
    async with bounded():
        await local_rig.start_worker()
        supervisor = await local_rig.start_computer()
        supervisor.hello = own({"t": "hello", "protocol": protocol, "channels": {}})
        local_rig.control.send("computer.attach", computer=local_rig.computer, fence=1, slot=5, acked={})
        state = await local_rig.control.expect("computer.state", state="gone")
        assert state["error"]["code"] == "supervisor_foreign" and f"{protocol!r}" in state["error"]["message"]
        assert local_rig.hostd.called("computer.stop") and not local_rig.control.count("computer.attached")


async def test_a_full_link_stops_the_reading_of_supervisors_until_it_has_drained(
    rig: Rig, bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        monkeypatch.setattr("helmr.host.worker.uplink.HIGH_WATER", -1)
        for _ in range(16):
            supervisor.say(7, bytes(MIB))
        # One read was under way; after it the frames stay with the guest, whose own buffers fill.
        await asyncio.wait_for(_still(supervisor), 4)
        held = len(rig.control.frames.get(5, []))
        assert held < 8 and supervisor.waiting() > 8 * MIB
        monkeypatch.undo()
        assert rig.worker is not None
        rig.worker.drained()
        await rig.control.until(lambda: ops(rig.control, 5, 7) == list(range(1, 17)))


async def _still(supervisor: ScriptedSupervisor) -> None:
    """Until nothing is taken from the supervisor over many turns of the loop."""
    quiet, last = 0, -1
    while quiet < 50:
        await asyncio.sleep(0)
        now = supervisor.waiting()
        quiet = quiet + 1 if now == last else 0
        last = now


async def test_a_computer_that_reads_nothing_loses_its_stream_and_hears_it_all_on_the_next(
    rig: Rig, bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmr.host.worker.stream.DOWN_BYTES", 300_000)
    async with bounded():
        supervisor = await rig.session(7)
        supervisor._pumps.copy().pop().cancel()
        for _ in range(20):
            rig.control.send_frames(5, encode(7, 0, bytes(100_000)))
        await rig.control.expect("computer.attached", slot=5)
        rig.control.send_frames(5, encode(7, 0, b"again"))
        await supervisor.until(lambda: supervisor.down[-1].payload == b"again")


async def test_frames_for_a_slot_that_is_not_attached_go_nowhere(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await rig.session(7)
        heard = len(supervisor.down)
        rig.control.send_frames(77, encode(7, 0, b"stray"))
        rig.control.send_frames(5, encode(7, 0, b"mine"))
        await supervisor.until(lambda: len(supervisor.down) > heard)
        assert supervisor.down[heard].payload == b"mine"
