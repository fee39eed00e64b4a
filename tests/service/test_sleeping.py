"""Computers that sleep: under pressure, when idle, and how they wake. SPEC [C6], [C10]; DESIGN I1, I5, I6."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from tests.service.scripted import agent, house

from helmr.control.service import faults, silences
from helmr.control.service.keyring import Keyring
from helmr.control.service.plane import PlaneConfig
from helmr.control.store.queries import computers
from helmr.control.upkeep.hibernation import Hibernation
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.control.upkeep.placement import Placement
from helmr.control.upkeep.transits import Transits
from helmr.objects import FolderObjects
from helmr.protocol.errors import ComputerBusy
from helmr.protocol.link import control
from helmr.protocol.unset import UNSET

pytestmark = pytest.mark.anyio


async def computer_of(h, session):
    return (await h.session(session))["computer_id"]


async def residency(h, computer):
    async with h.database.connection() as connection:
        return await connection.fetchval("SELECT residency FROM computers WHERE id = $1", computer)


async def until_residency(h, computer, wanted):
    async with asyncio.timeout(5):
        while await residency(h, computer) != wanted:
            h.host.changed.clear()
            await asyncio.sleep(0.005)  # another process's commit gives this test no event


async def asleep(h):
    """A Session whose Computer sleeps."""
    session, process = await h.warm()
    computer = await computer_of(h, session)
    assert await h.plane.sleeping.begin(computer)
    await h.until(session, "computer.hibernated")
    return session, process, computer


def said(h, kind, computer):
    return [message for message in h.host.said if message["t"] == kind and message["computer"] == computer]


async def test_a_turn_wakes_the_computer_and_runs_in_the_same_process(database, tmp_path):
    """[C6]: `init` is not rerun; the events say how long both took and what was kept."""
    async with house(database, tmp_path) as h:
        session, process, computer = await asleep(h)
        assert await residency(h, computer) == "hibernated"
        assert "key" not in said(h, "computer.sleep", computer)[0], "there is no master key"
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        process.settle(turn, result=7)
        assert (await h.turn(session, turn))["result"] == 7
        assert h.host.starts.empty(), "no second process"
        events = {event["kind"]: event["data"] for event in await h.events(session)}
        assert events["computer.hibernated"] == {"computer_id": computer, "rung": "freeze", "seconds": 0.002, "kept": ["memory", "files"]}
        assert events["computer.woken"]["seconds"] == 0.003 and events["computer.woken"]["slept_seconds"] >= 0
        kinds = await h.kinds(session)
        assert kinds.index("computer.woken") < kinds.index("turn.completed", kinds.index("computer.woken"))


async def test_memory_is_sealed_with_a_key_of_the_computers_own_that_only_the_control_plane_keeps(database, tmp_path):
    """[X1], [C6]: the worker is told it with each sleep and each wake."""
    sealing = PlaneConfig(keyring=Keyring({1: b"m" * 32}), objects=FolderObjects(tmp_path / "objects"))
    async with house(database, tmp_path, config=sealing) as h:
        keys = {}
        for _ in range(2):
            session, process, computer = await asleep(h)
            turn = (await h.enqueue(session))["id"]
            await process.began(turn)
            told = [message["key"] for kind in ("computer.sleep", "computer.wake") for message in said(h, kind, computer)]
            assert len(told) == 2 and len(set(told)) == 1 and len(base64.b64decode(told[0])) == 32
            keys[computer] = told[0]
            async with h.database.connection() as connection:
                data = await Keyring({1: b"m" * 32}).data_key(connection, computer, "computer")
            assert base64.b64decode(told[0]) != data, "whoever has it opens no saves"
        assert len(set(keys.values())) == 2


async def test_when_nothing_fits_the_longest_idle_computer_gives_way(database, tmp_path):
    """[C10]: a worker with room for two; a third Session is served, and the first again after it."""
    async with house(database, tmp_path) as h:
        h.host.disconnect()
        h.host.cpu = 2.0
        h.host.said.clear()
        h.host.connect()
        await h.host.told("welcome")
        first, first_process = await h.warm()
        second, _ = await h.warm()
        third, _ = await h.warm()
        oldest = await computer_of(h, first)
        assert await residency(h, oldest) == "hibernated"
        assert await residency(h, await computer_of(h, second)) == "running"
        turn = (await h.enqueue(first))["id"]
        await first_process.began(turn)
        assert await residency(h, await computer_of(h, second)) == "hibernated"
        assert await residency(h, await computer_of(h, third)) == "running"
        assert [message["t"] for message in h.host.said if message["t"] in ("computer.sleep", "computer.wake")] == [
            "computer.sleep", "computer.sleep", "computer.wake",
        ]  # fmt: skip


async def test_what_works_never_gives_way_and_who_waits_is_told_why(database, tmp_path):
    """[C10], [S23]: with no idle Computer the Turn waits, and goes on when one becomes idle."""
    async with house(database, tmp_path) as h:
        h.host.disconnect()
        h.host.cpu = 1.0
        h.host.connect()
        busy, process = await h.warm()
        turn = (await h.enqueue(busy))["id"]
        await process.began(turn)
        made = await h.create()
        waiting = made["session"]["id"]
        await until_explained(h, waiting, "waiting_for_capacity")
        assert said(h, "computer.sleep", await computer_of(h, busy)) == []
        process.settle(turn)
        await h.turn(busy, turn)
        await Placement(h.plane).run()
        later = await h.host.next_process()
        await later.began(made["turn"]["id"])


async def until_explained(h, session, state):
    async with asyncio.timeout(5):
        while (await h.plane.explanations.explain(h.principal, session)).state != state:
            await asyncio.sleep(0.005)  # the placement runs in the background


async def test_a_turn_admitted_while_it_falls_asleep_wakes_it_as_soon_as_it_sleeps(database, tmp_path):
    """[C1]: a wake during hibernation ends awake; nothing is claimed for a process that is asleep (I5)."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        computer = await computer_of(h, session)
        h.host.hesitant = True
        assert await h.plane.sleeping.begin(computer)
        async with asyncio.timeout(5):
            while not said(h, "computer.sleep", computer):
                h.host.changed.clear()
                await h.host.changed.wait()
        turn = (await h.enqueue(session))["id"]
        assert (await h.turn(session, turn, 0))["status"] == "queued"
        h.host.fall_asleep(computer)
        await process.began(turn)
        assert await residency(h, computer) == "running"


async def test_an_enqueue_that_waits_for_the_lock_of_a_sleep_is_queued_and_one_that_was_first_prevents_it(database, tmp_path):
    """Forced both ways: the decision to sleep and the admission meet on the Session's row."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        computer = await computer_of(h, session)
        async with h.database.connection() as holder:
            transaction = holder.transaction()
            await transaction.start()
            await holder.execute("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", session)
            sleeping = asyncio.ensure_future(h.plane.sleeping.begin(computer))
            await waits_for_locks(h, 1)
            enqueueing = asyncio.ensure_future(h.enqueue(session))
            await transaction.rollback()
        began, turn = await sleeping, (await enqueueing)["id"]
        if began:
            await h.until(session, "computer.woken")
        await process.began(turn)
        assert not await h.plane.sleeping.begin(computer), "a running Turn keeps it awake"
        process.settle(turn)
        await h.turn(session, turn)


async def waits_for_locks(h, count):
    async with asyncio.timeout(5):
        async with h.database.connection() as connection:
            while await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < count:
                await asyncio.sleep(0.005)  # a wait for a lock gives no event


async def test_a_computer_that_cannot_sleep_goes_on(database, tmp_path):
    """[C6]: a failed hibernation leaves everything running and is no strike."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        computer = await computer_of(h, session)
        h.host.refuse_sleep = {"code": "frozen_not", "message": "no"}
        assert await h.plane.sleeping.begin(computer)
        await until_residency(h, computer, "running")
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        assert "computer.hibernated" not in await h.kinds(session)


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_a_session_that_closes_while_its_computer_sleeps_is_woken_to_end(database, tmp_path, how):
    """[E4], [S19]: sealed only when the process is gone, so it is woken for that, whatever room there is."""
    async with house(database, tmp_path) as h:
        session, process, computer = await asleep(h)
        await getattr(h.plane.controls, how)(h.principal, session, None)
        assert (await h.session(session))["status"] == "closed"
        await Placement(h.plane).run()
        await process.heard("session.end")
        process.die("exited")
        async with asyncio.timeout(5):
            async for _ in h.plane.events.follow(h.principal, session, 0):
                pass
        assert computer in h.host.computers


async def test_a_held_session_sleeps_and_its_resume_wakes_it(database, tmp_path):
    """[S16], [S17], [C10]: a hold is no work; its queued Turn runs after the resume."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        hold = json.loads((await h.plane.controls.interrupt(h.principal, session, None)).body)["hold_id"]
        turn = (await h.enqueue(session))["id"]
        assert await h.plane.sleeping.begin(await computer_of(h, session))
        await h.until(session, "computer.hibernated")
        await h.plane.controls.resume(h.principal, session, hold, None)
        await process.began(turn)


async def test_a_restart_of_the_control_plane_or_the_link_leaves_it_asleep(database, tmp_path):
    """[C3], I6: the worker's hello says that it sleeps; it stays so, leased, until it is wanted."""
    async with house(database, tmp_path) as h:
        session, process, computer = await asleep(h)
        h.host.disconnect()
        h.host.said.clear()
        h.host.connect()
        await h.host.told("welcome")
        h.host.link.send(control("renew"))
        assert computer in (await h.host.told("renewed"))["computers"]
        assert await residency(h, computer) == "hibernated" and not said(h, "computer.stop", computer)
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)


async def test_memory_that_is_gone_when_the_worker_returns_is_a_reconstruction_and_no_strike(database, tmp_path):
    """[S14], [C6]: `recovery.reason` says memory_not_restored."""
    async with house(database, tmp_path) as h:
        session, _process, computer = await asleep(h)
        h.host.disconnect()
        h.host.computers.clear()
        h.host.processes.clear()
        h.host.said.clear()
        h.host.connect()
        await h.until(session, "session.process_failed")
        assert await residency(h, computer) == "cold"
        turn = (await h.enqueue(session))["id"]
        again = await h.host.next_process()
        assert again.opened["recovery"] == {"kind": "reconstructed", "reason": "memory_not_restored"}
        await again.began(turn)
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT strikes FROM sessions WHERE id = $1", session) == 0


async def test_a_sleeping_process_of_a_computer_that_was_noted_as_gone_is_ended_by_a_duty_and_is_no_strike(database, tmp_path):
    """[S14], I6: the control plane that noted the loss died before it said so of the process; nobody returns to tell."""
    async with house(database, tmp_path) as h:
        session, _process, computer = await asleep(h)
        fence = h.host.computers[computer]["fence"]
        h.host.disconnect()
        h.host.computers.clear()
        h.host.processes.clear()

        def die() -> None:
            raise RuntimeError("The control plane dies.")

        faults.arm("after_commit:computer_lost", die)
        try:
            with pytest.raises(RuntimeError):
                await h.plane.processes.computer_lost(computer, fence, "cold", None)
        finally:
            faults.disarm("after_commit:computer_lost")
        assert (await _process_of(h, session))["process"] == "asleep"
        await LostWorkers(h.plane).run()
        assert await _process_of(h, session) == {"process": "none", "strikes": 0}
        h.host.connect()
        turn = (await h.enqueue(session))["id"]
        again = await h.host.next_process()
        assert again.opened["recovery"] == {"kind": "reconstructed", "reason": "memory_not_restored"}
        await again.began(turn)


async def _process_of(h, session):
    async with h.database.connection() as connection:
        return dict(await connection.fetchrow("SELECT process, strikes FROM sessions WHERE id = $1", session))


async def test_a_computer_that_does_not_wake_in_time_is_given_up_and_made_again(database, tmp_path):
    """[C1]: every transitional state has a deadline and a target."""
    async with house(database, tmp_path) as h:
        session, _, computer = await asleep(h)
        h.host._computer_wake = lambda said: None
        turn = (await h.enqueue(session))["id"]
        await until_residency(h, computer, "waking")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET deadline_at = now() WHERE id = $1", computer)
        await Transits(h.plane).run()
        again = await h.host.next_process()
        await again.began(turn)
        assert again.opened["recovery"]["reason"] == "memory_not_restored"


async def test_one_that_does_not_fall_asleep_in_time_runs_on(database, tmp_path):
    """[C1]"""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        computer = await computer_of(h, session)
        h.host.hesitant = True
        assert await h.plane.sleeping.begin(computer)
        turn = (await h.enqueue(session))["id"]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET deadline_at = now() WHERE id = $1", computer)
        await Transits(h.plane).run()
        await process.began(turn)
        assert await residency(h, computer) == "running"


async def test_idle_for_its_period_it_sleeps_and_woken_without_a_turn_it_sleeps_after_the_period_again(database, tmp_path):
    """[C6]: `hibernate_after_idle` of every Agent on it; "never" keeps the timer away."""
    async with house(database, tmp_path, agent("talker", hibernate_after_idle_ms=60_000), agent("never")) as h:
        session, _ = await h.warm()
        computer = await computer_of(h, session)
        await Hibernation(h.plane).run()
        assert await residency(h, computer) == "running"
        await pass_time(h, 61)
        await Hibernation(h.plane).run()
        await h.until(session, "computer.hibernated")
        made = await h.create(agent="never")
        process = await h.host.next_process()
        await process.began(made["turn"]["id"])
        process.settle(made["turn"]["id"])
        await h.turn(made["session"]["id"], made["turn"]["id"])
        await pass_time(h, 100_000)
        await Hibernation(h.plane).run()
        assert await residency(h, await computer_of(h, made["session"]["id"])) == "running"


async def pass_time(h, seconds):
    async with h.database.connection() as connection:
        await connection.execute("UPDATE sessions SET idle_at = idle_at - $1 * interval '1 second'", seconds)


async def test_two_sessions_on_one_computer_sleep_and_wake_together(database, tmp_path):
    """[C6]: one that works keeps both awake; a Turn of either wakes both, and each goes on in its own process."""
    async with house(database, tmp_path) as h:
        first, first_process = await h.warm()
        computer = await computer_of(h, first)
        made = await h.create(computer_id=computer)
        second, turn = made["session"]["id"], made["turn"]["id"]
        second_process = await h.host.next_process()
        await second_process.began(turn)
        assert not await h.plane.sleeping.begin(computer)
        second_process.settle(turn)
        await h.turn(second, turn)
        assert await h.plane.sleeping.begin(computer)
        await h.until(first, "computer.hibernated")
        turns = [(await h.enqueue(session))["id"] for session in (second, first)]
        await second_process.began(turns[0])
        await first_process.began(turns[1])


BUSY = {"code": "computer_busy", "message": "In flight: 1 tunnel."}


@pytest.mark.ud("UD-37")
async def test_a_computer_with_something_in_flight_is_left_alone_for_a_while_and_its_idle_time_goes_on(database, tmp_path):
    """[C6]: neither the timer nor the pressure tries again at once; a minute later, and without a new period, it sleeps."""
    async with house(database, tmp_path, agent("talker", hibernate_after_idle_ms=60_000)) as h:
        session, _ = await h.warm()
        computer = await computer_of(h, session)
        h.host.refuse_sleep = BUSY
        await pass_time(h, 61)
        assert await h.plane.sleeping.sleep_idle() == 1
        await until_residency(h, computer, "running")
        h.host.refuse_sleep = None
        assert await h.plane.sleeping.sleep_idle() == 0
        async with h.database.connection() as connection:
            assert not await computers.idle_computers(connection, count=10)
            await connection.execute("UPDATE computers SET busy_until = now() WHERE id = $1", computer)
        assert await h.plane.sleeping.sleep_idle() == 1
        await h.until(session, "computer.hibernated")
        assert (await h.kinds(session)).count("computer.hibernated") == 1


async def test_who_wants_a_busy_computer_to_sleep_is_told_what_it_has_in_flight(database, tmp_path):
    """[C6]: as it was found, for as long as that is believed."""
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        computer = await computer_of(h, session)
        h.host.refuse_sleep = BUSY
        assert await h.plane.sleeping.begin(computer)
        await until_residency(h, computer, "running")
        with pytest.raises(ComputerBusy, match="1 tunnel"):
            await h.plane.computers.hibernate(h.principal, computer, None)
        h.host.refuse_sleep = None
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET busy_until = now() WHERE id = $1", computer)
        await h.plane.computers.hibernate(h.principal, computer, None)
        await h.until(session, "computer.hibernated")


@pytest.mark.ud("UD-15")
async def test_a_computer_that_does_not_answer_says_so_until_it_does(database, tmp_path):
    """[S23], [C1]: in `why` and with the Computer; a fence of an older placement says nothing."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        computer = await computer_of(h, session)
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        fence = h.host.computers[computer]["fence"]
        await silences.note(h.plane.links._core, computer, fence - 1, "then")
        assert "answer" not in (await h.plane.explanations.explain(h.principal, session)).sentence
        await silences.note(h.plane.links._core, computer, fence, "2026-01-01T00:00:00Z")
        sentence = (await h.plane.explanations.explain(h.principal, session)).sentence
        assert sentence.endswith("The Computer does not answer since 2026-01-01T00:00:00Z.")
        assert (await h.plane.computers.get(h.principal, computer)).error.code == "computer_silent"
        await silences.note(h.plane.links._core, computer, fence, None)
        assert "answer" not in (await h.plane.explanations.explain(h.principal, session)).sentence
        assert (await h.plane.computers.get(h.principal, computer)).error is UNSET
