"""A supervisor that does not answer is told of, then ended; one with something in flight is not put to sleep. UD-15, [C6], [S14], I8."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.worker.scripted_host import ScriptedSupervisor

from helmr.host.worker.ports import HostdRefused
from helmr.host.worker.pulse import Held, Pulse, PulseConfig

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Rig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio

OFTEN = PulseConfig(period_seconds=0.01, most=6)


class Asked:
    """The other side of a `Pulse`, whose periods pass when the test says so."""

    def __init__(self, **config: Any) -> None:
        self.numbers: list[int] = []
        self.told: list[str | None] = []
        self.hung: list[str] = []
        self.resting = False
        self.pulse = Pulse(
            PulseConfig(**config),
            ask=self.numbers.append,
            rests=lambda: self.resting,
            on_silent=self.told.append,
            on_hung=self.hung.append,
        )
        self.pulse.start()

    def period(self) -> None:
        assert self.pulse._timer is not None
        self.pulse._timer.cancel()
        self.pulse._look()

    def answer(self, **members: Any) -> None:
        self.pulse.answer({"n": self.numbers[-1], **members})


async def test_only_as_many_unanswered_questions_in_a_row_as_make_a_lease_count_as_hung() -> None:
    """UD-15: one that answers late, however late, answers."""
    asked = Asked(most=6)
    asked.period()
    for _ in range(3):
        for _ in range(5):
            asked.period()
        asked.answer()
        asked.period()
    assert asked.hung == [] and asked.told.count(None) == 3 and len(asked.told) == 6
    for _ in range(7):
        asked.period()
    assert len(asked.hung) == 2 and asked.hung[0] == asked.told[-1]
    asked.pulse.stop()


async def test_answers_that_are_not_read_and_a_computer_that_stands_still_are_no_silence() -> None:
    """I8: a link that is full, or a Computer that we have frozen."""
    asked = Asked(most=2)
    asked.resting = True
    for _ in range(10):
        asked.period()
    assert not asked.hung and not asked.told
    asked.resting = False
    asked.period()
    asked.pulse.forgive()
    asked.period()
    assert not asked.hung
    asked.period()
    assert asked.hung
    asked.pulse.stop()


async def test_what_is_in_flight_is_what_the_answer_to_the_latest_question_says() -> None:
    asked = Asked()
    asked.period()
    old = asked.numbers[-1]
    waiting = asyncio.ensure_future(asked.pulse.held())
    await asyncio.sleep(0)
    asked.pulse.answer({"n": old, "held": {"7": {"requests": 1}}})
    await asyncio.sleep(0)
    assert not waiting.done()
    asked.answer(held={"7": {"requests": 2}, "8": {"requests": 1, "kept": 1}})
    held = await waiting
    assert held == Held(requests=3, kept=1) and str(held) == "3 HTTP requests of Sessions and 1 keep_awake"
    assert not Held()
    waiting = asyncio.ensure_future(asked.pulse.held())
    await asyncio.sleep(0)
    asked.pulse.stop()
    with pytest.raises(ConnectionResetError):
        await waiting


async def joined(rig: Rig) -> ScriptedSupervisor:
    await rig.start_worker()
    return await rig.session()


def passing(rig: Rig) -> bool:
    """Another period is over for the Computer of a rig; False when it isn't attached any more. No period passes by itself."""
    assert rig.worker is not None
    pulse = rig.worker._computers[rig.computer]._attachment._pulse
    if pulse is None:
        return False
    assert pulse._timer is not None
    pulse._timer.cancel()
    pulse._look()
    return True


async def pass_until(rig: Rig, condition: Callable[[], bool]) -> None:
    while not condition() and passing(rig):
        await asyncio.sleep(0)


@pytest.mark.ud("UD-15")
async def test_a_guest_that_answers_nothing_for_a_lease_is_ended_and_its_processes_are_lost(local_rig: Rig, bounded: Bounded) -> None:
    """[S14]: with a clear cause, and after it was told that it is silent."""
    async with bounded():
        supervisor = await joined(local_rig)
        passing(local_rig)
        await supervisor.until(lambda: bool(supervisor.heard("ping")))
        supervisor.ignores.add("ping")
        await pass_until(local_rig, lambda: bool(local_rig.hostd.called("computer.stop")))
        exited = await local_rig.control.expect("session.exited", channel=7)
        gone = await local_rig.control.expect("computer.state", state="gone")
        silent = [told for told in local_rig.control.told if told["t"] == "computer.silent"][-1]
        assert silent["since"] in exited["message"] and exited["cause"] == "killed"
        assert (gone["reason"], gone["error"]["code"]) == ("stopped", "computer_unresponsive")
        assert gone["error"]["message"] == f"The Computer did not answer since {silent['since']}, and was ended."
        assert len(local_rig.hostd.called("computer.stop")) == 1


async def test_one_that_answers_again_is_told_and_goes_on(local_rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        supervisor = await joined(local_rig)
        supervisor.ignores.add("ping")
        await pass_until(local_rig, lambda: bool(local_rig.control.count("computer.silent")))
        assert "since" in await local_rig.control.expect("computer.silent")
        supervisor.ignores.clear()
        passing(local_rig)
        assert "since" not in await local_rig.control.expect("computer.silent")
        assert not local_rig.hostd.called("computer.stop")


async def test_a_computer_that_hostd_has_frozen_is_not_ended_for_its_silence(local_rig: Rig, bounded: Bounded) -> None:
    """I8: it answers when it is thawed; its silence is counted anew from then on."""
    async with bounded():
        local_rig.hostd.frozen = True
        supervisor = await joined(local_rig)
        supervisor.ignores.add("ping")
        await pass_until(local_rig, lambda: len(local_rig.hostd.called("computer.stats")) > 2)
        assert len(local_rig.hostd.called("computer.stats")) > 2, "it was asked whether it stands still, each time"
        assert not local_rig.hostd.called("computer.stop")
        local_rig.hostd.frozen = False
        await pass_until(local_rig, lambda: bool(local_rig.hostd.called("computer.stop")))
        await local_rig.control.expect("computer.state", state="gone")


@pytest.mark.ud("UD-15")
async def test_one_that_can_never_be_attached_is_ended_after_a_lease_of_trying(local_rig: Rig, bounded: Bounded) -> None:
    """I6: and not tried for ever."""
    async with bounded():
        local_rig.config = replace(local_rig.config, pulse=OFTEN)
        await local_rig.start_worker()
        await local_rig.start_computer()
        local_rig.hostd.refuse["computer.attach"] = HostdRefused("supervisor_silent", "It did not connect.")
        for slot in range(1, 100):
            local_rig.control.send("computer.attach", computer=local_rig.computer, fence=1, slot=slot, acked={})
            told = await local_rig.control.expect("computer.state", computer=local_rig.computer)
            if told["state"] == "gone" or local_rig.hostd.called("computer.stop"):
                break
        await local_rig.control.until(lambda: any(told.get("state") == "gone" for told in local_rig.control.told))
        (gone,) = [told for told in local_rig.control.told if told.get("state") == "gone"]
        assert gone["error"]["code"] == "computer_unresponsive"


@pytest.mark.ud("UD-37")
async def test_a_computer_whose_session_has_a_request_in_flight_stays_awake_and_sleeps_when_it_has_not(rig: Rig, bounded: Bounded) -> None:
    """[C6]: at the last moment the guest is asked; hostd isn't even told."""
    async with bounded():
        supervisor = await rig.session()
        supervisor.held = {"7": {"requests": 1}}
        rig.control.send("computer.sleep", computer=rig.computer, fence=1)
        awake = await rig.control.expect("computer.state", state="awake")
        assert awake["error"] == {"code": "computer_busy", "message": "In flight: 1 HTTP request of Sessions."}
        assert not rig.hostd.called("computer.hibernate")
        await rig.attach(slot=6)
        supervisor.held = {}
        rig.control.send("computer.sleep", computer=rig.computer, fence=1)
        assert (await rig.control.expect("computer.state", state="asleep"))["rung"] == "freeze"


async def test_a_computer_that_hostd_calls_busy_stays_awake(rig: Rig, bounded: Bounded) -> None:
    """[C6]: what its proxy carries."""
    async with bounded():
        await rig.session()
        rig.hostd.refuse["computer.hibernate"] = HostdRefused("computer_busy", "In flight: 1 tunnel.")
        rig.control.send("computer.sleep", computer=rig.computer, fence=1)
        awake = await rig.control.expect("computer.state", state="awake")
        assert awake["error"] == {"code": "computer_busy", "message": "In flight: 1 tunnel."}


async def test_a_computer_that_can_not_be_asked_is_not_put_to_sleep(rig: Rig, bounded: Bounded) -> None:
    """[C6]: the control plane attaches it then, and tries again later."""
    async with bounded():
        await rig.start_computer()
        rig.control.send("computer.sleep", computer=rig.computer, fence=1)
        awake = await rig.control.expect("computer.state", state="awake")
        assert awake["error"]["code"] == "host_unavailable" and not rig.hostd.called("computer.hibernate")
