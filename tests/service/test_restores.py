"""Computers whose host is given up: restored elsewhere, with what is lost held against who lost it. SPEC [C5], [S14]; I4, I8; UD-40."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.service.races.forcing import away_at, quiet
from tests.service.races.planes import take_over
from tests.service.scripted import House, ScriptedHost, house
from tests.service.test_computers import ask, execute, get, told, until, warm
from tests.service.test_saves import saving_house, turn_ends, until_saved

from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.control.upkeep.placement import Placement
from helmr.control.upkeep.transits import Transits
from helmr.protocol.errors import CapacityUnavailable, DatabaseUnavailable

pytestmark = pytest.mark.anyio
DAMAGED = {"code": "save_damaged", "message": "The chunk 12 does not open."}


async def lose(h: House, host: ScriptedHost | None = None) -> None:
    """The host is silent for its lease and the grace."""
    host = host or h.host
    host.disconnect()
    await execute(h, "UPDATE workers SET lease_until = now() - interval '31 s' WHERE id = $1", host.worker_id)
    h.plane.serving_seconds = lambda: 1000.0  # pyright: ignore[reportAttributeAccessIssue]
    await LostWorkers(h.plane).run()
    await quiet(h.plane)


async def another(h: House, *, name: str = "other", base: str = "none") -> ScriptedHost:
    host = ScriptedHost(h.plane, name=name)
    host.base = base
    host.connect()
    await host.told("welcome")
    return host


async def saved_and_gone(h: House) -> tuple[str, Any, str]:
    """A Session with a Turn in its Computer's save and two above it, whose host is given up."""
    session, process, computer = await warm(h)
    await ask(h, "save", computer)
    await until_saved(h, computer)
    await turn_ends(h, session, process)
    await turn_ends(h, session, process)
    await lose(h)
    assert (await get(h, computer)).residency == "unavailable"
    return session, process, computer


async def hold_of(h: House, session: str) -> dict[str, Any]:
    (hold,) = (await h.session(session))["holds"]
    return hold


async def test_a_lost_hosts_computer_is_restored_elsewhere_and_what_its_save_lacks_is_held_against_the_session(database, tmp_path):
    """[C5], I8: first and last lost Turn are named; released by hand, it goes on from the save, and says that it did [S14]."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await saved_and_gone(h)
        queued = (await h.enqueue(session))["id"]
        other = await another(h)
        await Placement(h.plane).run()
        event = await h.until(session, "computer.restored")
        assert event["data"]["kept"] == ["files"] and event["data"]["lost"] == ["memory"] and event["data"]["age_seconds"] >= 0
        (start,) = [said for said in other.said if said["t"] == "computer.start"]
        first = told(h, "computer.save", computer)[0]
        assert start["restore"]["save"] == first["save"] == event["data"]["save_id"] and start["restore"]["keys"] == first["keys"]
        hold = await hold_of(h, session)
        gap = hold["recovery_gap"]
        assert (hold["kind"], gap["first_turn_sequence"], gap["last_turn_sequence"]) == ("recovery_gap", 2, 3) and hold["can_release"]
        held = [record for record in await h.events(session) if record["kind"] == "session.held"]
        assert held[-1]["data"]["recovery_gap"]["last_turn_sequence"] == 3
        explained = await h.plane.explanations.explain(h.principal, session)
        assert explained.state == "held" and "Turns 2 to 3" in explained.sentence
        assert (await h.turn(session, queued, 0))["status"] == "queued"
        await h.plane.controls.resume(h.principal, session, hold["id"], None)
        process = await other.next_process()
        assert process.opened["recovery"] == {"kind": "reconstructed", "reason": "restored_from_save"}
        await process.began(queued)
        process.settle(queued, result=None)
        assert (await h.turn(session, queued))["status"] == "completed"


async def test_the_old_host_that_comes_back_after_that_ends_its_guest_and_destroys_its_files(database, tmp_path):
    """I4, I8: never both."""
    async with saving_house(database, tmp_path) as h:
        _, process, computer = await saved_and_gone(h)
        other = await another(h)
        await ask(h, "wake", computer)
        await until(h, computer, residency="running")
        h.host.said.clear()
        h.host.connect()
        assert (await h.host.told("computer.destroy"))["computer"] == computer
        await quiet(h.plane)
        assert not process.alive and (await get(h, computer)).residency == "running" and computer in other.computers


async def test_an_old_host_that_comes_back_while_it_is_restored_ends_its_guest_and_keeps_its_files_until_that_is_done(database, tmp_path):
    """I8, UD-40: they are the last copy should the restore fail."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await saved_and_gone(h)
        other = await another(h)
        other._computer_start = lambda said: None  # pyright: ignore[reportAttributeAccessIssue]
        await ask(h, "wake", computer)
        await until(h, computer, residency="restoring")
        h.host.said.clear()
        h.host.connect()
        assert (await h.host.told("computer.stop"))["computer"] == computer
        await quiet(h.plane)
        assert told(h, "computer.destroy", computer) == [] and (await get(h, computer)).residency == "restoring"


@pytest.mark.ud("UD-40")
async def test_without_a_save_a_computer_waits_for_its_host_with_its_files(database, tmp_path):
    """[C5]: never presumed gone; the explanation says what it waits for."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await warm(h)
        await lose(h)
        queued = (await h.enqueue(session))["id"]
        other = await another(h)
        await Placement(h.plane).run()
        await quiet(h.plane)
        for how in ("wake", "recover"):
            with pytest.raises(CapacityUnavailable):
                await ask(h, how, computer)
        assert computer not in other.computers and (await h.plane.explanations.explain(h.principal, session)).state == "worker_away"
        h.host.connect()
        process = await h.host.next_process()
        await process.began(queued)
        assert (await h.session(session))["holds"] == []


@pytest.mark.ud("UD-40")
@pytest.mark.parametrize("failing", ["failed", "gone"])
async def test_a_computer_that_could_not_be_started_or_stopped_is_not_gone(database, tmp_path, failing):
    """[C5]: a host that answers has its files, whatever its driver says: there is a save, and it is not used."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await warm(h)
        await ask(h, "save", computer)
        await until_saved(h, computer)
        other = await another(h)
        h.host._tell_state(computer, failing, error={"code": "driver", "message": "500"}, reason="exited")
        await until(h, computer, residency="cold" if failing == "gone" else "running")
        await Placement(h.plane).run()
        await LostWorkers(h.plane).run()
        await quiet(h.plane)
        assert computer not in other.computers and "computer.restored" not in await h.kinds(session)


@pytest.mark.parametrize("residency", ["cold", "hibernated"])
async def test_one_that_rests_on_a_lost_host_is_restored_once_somebody_wants_it(database, tmp_path, residency):
    """[C5]: until then it stays as it is, and its host may come back to it."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await warm(h)
        await ask(h, "hibernate", computer)
        await until(h, computer, residency="hibernated")
        await ask(h, "save", computer)
        await until_saved(h, computer)
        if residency == "cold":
            h.host._tell_state(computer, "gone", reason="exited")
            await until(h, computer, residency="cold")
        await lose(h)
        assert (await get(h, computer)).residency == residency
        other = await another(h)
        queued = (await h.enqueue(session))["id"]
        await quiet(h.plane)
        async with asyncio.timeout(10):
            while other.starts.empty():  # the duties come again and again: one finds what the other noted
                await LostWorkers(h.plane).run()
                await quiet(h.plane)
                await Placement(h.plane).run()
                await quiet(h.plane)
        process = await other.next_process()
        await process.began(queued)
        assert "computer.restored" in await h.kinds(session) and (await h.session(session))["holds"] == []


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "in passing"])
async def test_a_restore_that_fails_leaves_the_computer_its_lost_hosts_as_before(database, tmp_path, damaged):
    """[C1], [C5]: with the cause shown; a damaged save is not tried again, another failure is."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await saved_and_gone(h)
        other = await another(h)
        other.refuse_restores = DAMAGED if damaged else {"code": "no_space", "message": "full"}
        await ask(h, "wake", computer)
        await until(h, computer, residency="unavailable")
        shown = await get(h, computer)
        assert shown.error.code == other.refuse_restores["code"] and (shown.save_id is None or not shown.save_id) is damaged
        other.refuse_restores = None
        if damaged:
            with pytest.raises(CapacityUnavailable):
                await ask(h, "recover", computer)
            queued = (await h.enqueue(session))["id"]
            h.host.connect()
            process = await h.host.next_process()
            await process.began(queued)
            assert (await h.session(session))["holds"] == []
        else:
            await ask(h, "recover", computer)
            await until(h, computer, residency="running")
            assert computer in other.computers


async def test_a_host_that_is_lost_while_it_restores_leaves_it_to_the_next(database, tmp_path):
    """[C5], I6: the same save, once; who lost Turns is told once."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await saved_and_gone(h)
        second = await another(h)
        second._computer_start = lambda said: None  # pyright: ignore[reportAttributeAccessIssue]
        await ask(h, "wake", computer)
        await until(h, computer, residency="restoring")
        await lose(h, second)
        assert (await get(h, computer)).residency == "unavailable"
        third = await another(h, name="third")
        await ask(h, "wake", computer)
        await until(h, computer, residency="running")
        assert computer in third.computers and [hold["kind"] for hold in (await h.session(session))["holds"]] == ["recovery_gap"]
        await lose(h, third)
        fourth = await another(h, name="fourth")
        await ask(h, "wake", computer)
        await until(h, computer, residency="running")
        assert computer in fourth.computers and [hold["kind"] for hold in (await h.session(session))["holds"]] == ["recovery_gap"]


async def test_a_restore_that_takes_too_long_is_given_up(database, tmp_path):
    """[C1]: every transitional state has a deadline."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await saved_and_gone(h)
        other = await another(h)
        started = other._computer_start
        other._computer_start = lambda said: None  # pyright: ignore[reportAttributeAccessIssue]
        await ask(h, "wake", computer)
        await until(h, computer, residency="restoring")
        await execute(h, "UPDATE computers SET deadline_at = now()")
        await Transits(h.plane).run()
        assert (await get(h, computer)).residency == "unavailable" and (await get(h, computer)).error.code == "computer_overdue"
        other._computer_start = started  # pyright: ignore[reportAttributeAccessIssue]
        await ask(h, "wake", computer)
        await until(h, computer, residency="running")


async def test_one_made_from_its_host_waits_for_a_host_of_the_same_base_and_says_so(database, tmp_path):
    """[A7], [C5]: `base_mismatch`."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await saved_and_gone(h)
        await h.enqueue(session)
        other = await another(h, base="another")
        await Placement(h.plane).run()
        await quiet(h.plane)
        assert (await get(h, computer)).residency == "unavailable" and computer not in other.computers
        explained = await h.plane.explanations.explain(h.principal, session)
        assert explained.state == "base_mismatch" and "base" in explained.sentence
        third = await another(h, name="third")
        await Placement(h.plane).run()
        await h.until(session, "computer.restored")
        assert computer in third.computers


@pytest.mark.parametrize("point", ["after_commit:place", "before_commit:restored", "after_commit:restored", "after_commit:worker_lost"])
async def test_a_control_plane_that_dies_around_a_commit_of_a_restore_leaves_one_that_converges(database, tmp_path, point):
    """STYLE 18, I6: restored once, held once."""
    async with saving_house(database, tmp_path) as h:
        session, process, computer = await warm(h)
        await ask(h, "save", computer)
        await until_saved(h, computer)
        await turn_ends(h, session, process)
        lost, other = h.host, ScriptedHost(h.plane, name="other")
        lost.disconnect()
        await execute(h, "UPDATE workers SET lease_until = now() - interval '31 s'")
        if point != "after_commit:worker_lost":
            await h.plane.processes.worker_lost(lost.worker_id)
        h.host = other
        other.connect()
        await other.told("welcome")
        with away_at(point) as passed:
            if point == "after_commit:worker_lost":
                with pytest.raises(DatabaseUnavailable):
                    await h.plane.processes.worker_lost(lost.worker_id)
            else:
                queued = (await h.enqueue(session))["id"]
                async with asyncio.timeout(5):
                    while not passed:
                        await asyncio.sleep(0.005)
        await take_over(h, tmp_path)
        h.plane.serving_seconds = lambda: 1000.0  # pyright: ignore[reportAttributeAccessIssue]
        await LostWorkers(h.plane).run()
        await quiet(h.plane)
        if point == "after_commit:worker_lost":
            queued = (await h.enqueue(session))["id"]
        await Placement(h.plane).run()
        await h.until(session, "computer.restored")
        hold = await hold_of(h, session)
        await h.plane.controls.resume(h.principal, session, hold["id"], None)
        going = await other.next_process()
        await going.began(queued)
        kinds = await h.kinds(session)
        assert (kinds.count("computer.restored"), kinds.count("session.held")) == (1, 1)


async def test_an_installation_that_takes_no_saves_restores_none(database, tmp_path):
    async with house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await lose(h)
        await another(h)
        with pytest.raises(CapacityUnavailable):
            await ask(h, "wake", computer)
