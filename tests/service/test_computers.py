"""Computers for people: made by hand, put to sleep, woken, deleted, gone by age. SPEC [C1], [C6], [C9], [O1], [S4]; DESIGN I3, I4, I6."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.service.races.forcing import away_at, quiet
from tests.service.races.planes import beside, take_over
from tests.service.scripted import House, agent, deploy, house, manifest

from helmr.control.service.limits import EnvironmentLimits, Limits
from helmr.control.service.principals import Principal, ensure_environment, session_principal
from helmr.control.service.render import time_text
from helmr.control.upkeep.computers import ComputerExpiry
from helmr.control.upkeep.linked import Linked
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.control.upkeep.placement import Placement
from helmr.control.upkeep.transits import Transits
from helmr.protocol.errors import (
    CapacityUnavailable,
    ComputerBusy,
    ComputerDeleting,
    ComputerKeyConflict,
    ComputerNotFound,
    DatabaseUnavailable,
    Forbidden,
    IdempotencyConflict,
    InvalidCursor,
    InvalidValue,
    NoCurrentDeployment,
    TemplateNotFound,
)
from helmr.protocol.ids import new_id
from helmr.protocol.link import control
from helmr.protocol.unset import UNSET

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000


async def make(h: House, key: str | None = None, idempotency_key: str | None = None, template: str = "small") -> str:
    reply = await h.plane.computers.create(h.principal, template=template, key=key, idempotency_key=idempotency_key)
    return str(json.loads(reply.body)["id"])


async def get(h: House, computer: str) -> Any:
    return await h.plane.computers.get(h.principal, computer)


async def ask(h: House, how: str, computer: str, key: str | None = None) -> dict[str, Any]:
    return json.loads((await getattr(h.plane.computers, how)(h.principal, computer, key)).body)


async def found(h: House, **filters: Any) -> list[str]:
    page = await h.plane.computers.list(h.principal, **{"status": (), "template": None, "cursor": None, "limit": 50, **filters})
    return [item.id for item in page.items]


async def until(h: House, computer: str, **wanted: str) -> None:
    """Return once it is as wanted: another task's commit gives this test no event."""
    async with asyncio.timeout(5):
        while {name: getattr(await get(h, computer), name) for name in wanted} != wanted:
            await asyncio.sleep(0.005)


async def warm(h: House) -> tuple[str, Any, str]:
    session, process = await h.warm()
    return session, process, (await h.session(session))["computer_id"]


async def over(h: House) -> str:
    """A running Computer whose one Session is closed and sealed."""
    session, process, computer = await warm(h)
    await h.plane.controls.close(h.principal, session, None)
    await process.heard("session.end")
    process.die("exited")
    async with asyncio.timeout(5):
        async for _ in h.plane.events.follow(h.principal, session, 0):
            pass
    return computer


async def execute(h: House, statement: str, *values: Any) -> None:
    async with h.database.connection() as connection:
        await connection.execute(statement, *values)


def told(h: House, kind: str, computer: str) -> list[dict[str, Any]]:
    return [said for said in h.host.said if said["t"] == kind and said["computer"] == computer]


async def until_told(h: House, kind: str, computer: str, count: int = 1) -> None:
    async with asyncio.timeout(5):
        while len(told(h, kind, computer)) < count:
            h.host.changed.clear()
            await h.host.changed.wait()


def stranger(h: House, *permissions: str, environment_id: str | None = None) -> Principal:
    return Principal(
        id=h.principal.id,
        environment_id=environment_id or h.principal.environment_id,
        kind="api_key",
        permissions=frozenset(permissions),
    )


# --- made by hand -----------------------------------------------------------------------------------------------------------------


async def test_a_computer_made_by_hand_is_cold_until_a_session_comes_on_it_and_outlives_all_of_them(database, tmp_path):
    """[C1], [C9]"""
    async with house(database, tmp_path) as h:
        computer = await make(h, "mine")
        shape = await get(h, computer)
        assert (shape.status, shape.residency, shape.explicit, shape.open_sessions) == ("available", "cold", True, 0)
        assert (shape.template, shape.key, shape.cpu, shape.memory) == ("small", "mine", 1.0, 1 << 30)
        made = await h.create(computer_id=computer)
        process = await h.host.next_process()
        await process.began(made["turn"]["id"])
        assert process.computer == computer and (await get(h, computer)).open_sessions == 1
        await h.plane.controls.cancel(h.principal, made["session"]["id"], None)
        await execute(h, "UPDATE sessions SET closed_at = closed_at - interval '100 days'")
        await execute(h, "UPDATE computers SET created_at = created_at - interval '100 days'")
        await ComputerExpiry(h.plane).run()
        shape = await get(h, computer)
        assert shape.status == "available" and shape.delete_after is UNSET


async def test_a_key_names_one_computer_of_a_template_until_that_is_deleted(database, tmp_path):
    """[C1]: the conflict names the occupant; twenty at once make one."""
    async with house(database, tmp_path) as h:
        first = await make(h, "k")
        with pytest.raises(ComputerKeyConflict) as refused:
            await make(h, "k")
        assert refused.value.facts["computer_id"] == first
        assert await make(h) != await make(h)
        await ask(h, "delete", first)
        outcomes = await asyncio.gather(*(make(h, "k") for _ in range(20)), return_exceptions=True)
        made = [one for one in outcomes if isinstance(one, str)]
        conflicts = [one for one in outcomes if isinstance(one, ComputerKeyConflict)]
        assert len(made) == 1 and len(conflicts) == 19 and first not in made
        assert {conflict.facts["computer_id"] for conflict in conflicts} == set(made)


async def test_an_exact_retry_of_a_creation_gives_the_first_receipt_whatever_became_of_it(database, tmp_path):
    """[S4]"""
    async with house(database, tmp_path) as h:
        computer = await make(h, "k", "once")
        await ask(h, "delete", computer)
        assert await make(h, "k", "once") == computer
        with pytest.raises(IdempotencyConflict):
            await make(h, "other", "once")
        assert await found(h) == []


async def test_what_a_creation_refuses_leaves_nothing(database, tmp_path):
    """[C1], [S4]: the idempotency key of a refused one is free."""
    async with house(database, tmp_path) as h:
        with pytest.raises(TemplateNotFound):
            await make(h, idempotency_key="i", template="unknown")
        for key in ("", "x" * 513, "a\0b"):
            with pytest.raises(InvalidValue):
                await make(h, key)
        for who in (stranger(h, "computers.read"), session_principal(new_id(), h.principal.environment_id)):
            with pytest.raises(Forbidden):
                await h.plane.computers.create(who, template="small", key=None, idempotency_key=None)
        assert await found(h) == []
        assert await make(h, idempotency_key="i") in await found(h)
        async with h.database.connection() as connection:
            empty = await ensure_environment(connection, "test", "empty")
        with pytest.raises(NoCurrentDeployment):
            await h.plane.computers.create(
                stranger(h, "computers.write", environment_id=empty), template="small", key=None, idempotency_key=None
            )


async def test_computers_are_listed_by_status_and_template_in_pages_and_only_to_their_environment(database, tmp_path):
    """[O1]: a foreign id is like an unknown one."""
    async with house(database, tmp_path) as h:
        ids = sorted([await make(h) for _ in range(5)])  # newest first goes by the id, which within a millisecond is chance
        await ask(h, "delete", ids[0])
        assert await found(h) == ids[:0:-1]
        assert await found(h, status=("deleted",)) == [ids[0]]
        assert await found(h, status=("available", "deleted")) == ids[::-1]
        assert await found(h, template="other") == []
        page = await h.plane.computers.list(h.principal, status=(), template="small", cursor=None, limit=3)
        rest = await h.plane.computers.list(h.principal, status=(), template="small", cursor=page.next_cursor, limit=3)
        assert [item.id for item in (*page.items, *rest.items)] == ids[:0:-1] and rest.next_cursor is None
        with pytest.raises(InvalidCursor):
            await found(h, cursor="none")
        async with h.database.connection() as connection:
            other = await ensure_environment(connection, "test", "other")
        foreigner = stranger(h, "computers.read", "computers.write", "sessions.read", environment_id=other)
        assert (await h.plane.computers.list(foreigner, status=(), template=None, cursor=None, limit=9)).items == ()
        for computer in (ids[1], new_id(), "no id"):
            with pytest.raises(ComputerNotFound):
                await h.plane.computers.get(foreigner, computer)
            with pytest.raises(ComputerNotFound):
                await h.plane.computers.members(foreigner, computer, None, 9)
            for how in ("hibernate", "wake", "recover", "delete"):
                with pytest.raises(ComputerNotFound):
                    await getattr(h.plane.computers, how)(foreigner, computer, None)
        reader = stranger(h, "computers.read")
        assert (await h.plane.computers.get(reader, ids[1])).id == ids[1]
        for how in ("hibernate", "wake", "recover", "delete"):
            with pytest.raises(Forbidden):
                await getattr(h.plane.computers, how)(reader, ids[1], None)
        with pytest.raises(Forbidden):
            await h.plane.computers.members(reader, ids[1], None, 9)
        with pytest.raises(Forbidden):
            await h.plane.computers.get(stranger(h), ids[1])


async def test_members_are_all_sessions_of_a_computer_the_newest_first(database, tmp_path):
    """[C1], [S1]: a Session is a member from its creation, and stays one when it is closed."""
    async with house(database, tmp_path) as h:
        computer = await make(h)
        sessions = [(await h.create(None, computer_id=computer))["session"]["id"] for _ in range(3)]
        await h.create(None)
        await h.plane.controls.close(h.principal, sessions[1], None)
        first = await h.plane.computers.members(h.principal, computer, None, 2)
        rest = await h.plane.computers.members(h.principal, computer, first.next_cursor, 2)
        assert [(item.id, item.status) for item in (*first.items, *rest.items)] == [
            (sessions[2], "open"), (sessions[1], "closed"), (sessions[0], "open"),
        ]  # fmt: skip
        assert (await get(h, computer)).open_sessions == 2


# --- sleep and wake ---------------------------------------------------------------------------------------------------------------


async def test_somebody_puts_it_to_sleep_and_wakes_it_without_a_turn(database, tmp_path):
    """[C6]: the same process goes on; each request may be repeated."""
    async with house(database, tmp_path) as h:
        session, process, computer = await warm(h)
        assert (await ask(h, "hibernate", computer, "h"))["residency"] == "hibernating"
        await h.until(session, "computer.hibernated")
        assert (await get(h, computer)).slept_at is not UNSET
        assert (await ask(h, "hibernate", computer))["residency"] == "hibernated"
        assert (await ask(h, "wake", computer))["residency"] == "waking"
        await h.until(session, "computer.woken")
        await until(h, computer, residency="running")
        assert (await ask(h, "wake", computer))["residency"] == "running"
        assert (await ask(h, "hibernate", computer, "h"))["residency"] == "hibernating", "the first receipt, with no second effect"
        assert (await get(h, computer)).residency == "running"
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        with pytest.raises(ComputerBusy):
            await ask(h, "hibernate", computer)
        assert (await h.kinds(session)).count("computer.hibernated") == 1


async def test_one_that_falls_asleep_is_woken_and_nothing_is_lost_by_that(database, tmp_path):
    """[C1]: a wake during hibernation ends awake, though the worker says only then that it sleeps."""
    async with house(database, tmp_path) as h:
        session, process, computer = await warm(h)
        h.host.hesitant = True
        answer, h.host._computer_wake = h.host._computer_wake, lambda said: None
        await ask(h, "hibernate", computer)
        await until_told(h, "computer.sleep", computer)
        assert (await ask(h, "wake", computer))["residency"] == "waking"
        await until_told(h, "computer.wake", computer)
        h.host.fall_asleep(computer)
        answer({"computer": computer})
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        assert told(h, "computer.stop", computer) == [] and (await get(h, computer)).residency == "running"


async def test_one_that_falls_asleep_after_its_time_was_over_runs_on(database, tmp_path):
    """[C1]: it was to be turned around; that it slept after all does not stop it."""
    async with house(database, tmp_path) as h:
        session, process, computer = await warm(h)
        h.host.hesitant = True
        answer, h.host._computer_wake = h.host._computer_wake, lambda said: None
        assert await h.plane.sleeping.begin(computer)
        await execute(h, "UPDATE computers SET deadline_at = now() WHERE id = $1", computer)
        await Transits(h.plane).run()
        await until_told(h, "computer.wake", computer)
        h.host.fall_asleep(computer)
        answer({"computer": computer})
        await process.began((await h.enqueue(session))["id"])
        assert told(h, "computer.stop", computer) == []


async def test_a_cold_one_is_started_by_a_wake_and_rests_again_when_no_session_comes(database, tmp_path):
    """[C6], [C10]: it holds room for nobody for a minute at most."""
    async with house(database, tmp_path) as h:
        computer = await make(h)
        assert (await ask(h, "hibernate", computer))["residency"] == "cold"
        assert (await ask(h, "wake", computer))["residency"] == "starting"
        await until(h, computer, residency="running")
        await h.plane.links.rest()
        assert (await get(h, computer)).residency == "running"
        assert (await ask(h, "hibernate", computer))["residency"] == "hibernating"
        await until(h, computer, residency="hibernated")
        await ask(h, "wake", computer)
        await until(h, computer, residency="running")
        await execute(h, "UPDATE computers SET kept_until = now()")
        await quiet(h.plane)
        await h.plane.links.rest()
        await until(h, computer, residency="cold")


async def test_a_wake_finds_no_room_where_there_is_none_and_changes_nothing(database, tmp_path):
    """[C10]"""
    async with house(database, tmp_path) as h:
        h.host.disconnect()
        h.host.cpu = 1.0
        h.host.said.clear()
        h.host.connect()
        await h.host.told("welcome")
        _, _, running = await warm(h)
        computer = await make(h)
        with pytest.raises(CapacityUnavailable):
            await ask(h, "wake", computer)
        assert (await get(h, computer)).residency == "cold"
        await ask(h, "hibernate", running)
        await until(h, running, residency="hibernated")
        assert (await ask(h, "wake", computer))["residency"] == "starting"
        with pytest.raises(CapacityUnavailable):
            await ask(h, "wake", running)
        with pytest.raises(ComputerBusy):
            h.host.hesitant = True
            await execute(h, "UPDATE computers SET residency = 'waking' WHERE id = $1", running)
            await ask(h, "hibernate", running)
        await execute(h, "UPDATE computers SET residency = 'hibernated' WHERE id = $1", running)


# --- deletion ---------------------------------------------------------------------------------------------------------------------


async def test_delete_is_refused_while_a_session_is_open_and_done_when_the_worker_says_so(database, tmp_path):
    """[C9]: deleting, then deleted; again changes nothing."""
    async with house(database, tmp_path) as h:
        session, process, computer = await warm(h)
        with pytest.raises(ComputerBusy) as refused:
            await ask(h, "delete", computer, "d")
        assert refused.value.facts["open_sessions"] == 1 and (await get(h, computer)).status == "available"
        answer, h.host._computer_destroy = h.host._computer_destroy, lambda said: None
        await h.plane.controls.close(h.principal, session, None)
        await process.heard("session.end")
        assert (await ask(h, "delete", computer, "d"))["status"] == "deleting"
        assert (await ask(h, "delete", computer))["status"] == "deleting"
        await until_told(h, "computer.destroy", computer)
        for how in ("wake", "hibernate", "recover"):
            with pytest.raises(ComputerDeleting):
                await ask(h, how, computer)
        with pytest.raises(ComputerDeleting):
            await h.create(computer_id=computer)
        explained = await h.plane.explanations.explain(h.principal, session)
        assert explained.state == "closed" and "being deleted" in explained.sentence
        answer(told(h, "computer.destroy", computer)[0])
        await until(h, computer, status="deleted", residency="cold")
        assert (await get(h, computer)).deleted_at is not UNSET
        assert (await ask(h, "delete", computer))["status"] == "deleted"
        assert (await ask(h, "delete", computer, "d"))["status"] == "deleting", "the first receipt"
        async with asyncio.timeout(5):  # the process that was ending is gone with it: the timeline ends
            async for _ in h.plane.events.follow(h.principal, session, 0):
                pass
        for how in ("wake", "hibernate", "recover"):
            with pytest.raises(ComputerNotFound):
                await ask(h, how, computer)
        with pytest.raises(ComputerNotFound):
            await h.create(computer_id=computer)
        assert len(told(h, "computer.destroy", computer)) == 1


async def test_one_that_sleeps_with_a_process_that_is_to_end_is_deleted_without_being_woken(database, tmp_path):
    """[C9], [E4]: its Session is sealed by that."""
    async with house(database, tmp_path) as h:
        session, _, computer = await warm(h)
        await ask(h, "hibernate", computer)
        await h.until(session, "computer.hibernated")
        answer, h.host._computer_destroy = h.host._computer_destroy, lambda said: None
        # Closing would wake it; the deletion comes first.
        with away_at("after_commit:close"), pytest.raises(DatabaseUnavailable):
            await h.plane.controls.close(h.principal, session, None)
        await ask(h, "delete", computer)
        await Placement(h.plane).run()
        await quiet(h.plane)
        await until_told(h, "computer.destroy", computer)
        assert told(h, "computer.wake", computer) == []
        answer(told(h, "computer.destroy", computer)[0])
        await until(h, computer, status="deleted")
        async with asyncio.timeout(5):
            async for _ in h.plane.events.follow(h.principal, session, 0):
                pass


DEATHS = [f"{point}:{name}" for name in ("delete_computer", "computer_deleted") for point in ("before_commit", "after_commit")]


@pytest.mark.parametrize("lost", [*DEATHS, "reply"])
async def test_a_control_plane_that_dies_anywhere_in_a_deletion_leaves_it_to_its_successor(database, tmp_path, lost):
    """[C9], I6: it ends deleted, though the destroy was never sent, its reply got lost, or what came of that."""
    async with house(database, tmp_path) as h:
        try:
            computer = await over(h)
            if lost == "reply":
                h.host._computer_destroy = lambda said: h.host.computers.pop(said["computer"], None)
                await ask(h, "delete", computer)
                await until_told(h, "computer.destroy", computer)
                del h.host._computer_destroy
            else:
                with away_at(lost) as passes:
                    if lost.endswith("delete_computer"):
                        with pytest.raises(DatabaseUnavailable):
                            await ask(h, "delete", computer, "d")
                    else:
                        await ask(h, "delete", computer, "d")
                        async with asyncio.timeout(5):
                            while not passes:
                                await asyncio.sleep(0.001)  # the plane tries again by itself
            await take_over(h, tmp_path)
            if lost.startswith("before_commit:delete"):
                assert (await get(h, computer)).status == "available"
                await ask(h, "delete", computer, "d")
            await until(h, computer, status="deleted")
            assert computer not in h.host.computers
        finally:
            await h.plane.stop()


async def test_a_worker_that_is_away_delays_a_deletion(database, tmp_path):
    """[C9]"""
    async with house(database, tmp_path) as h:
        computer = await over(h)
        h.host.disconnect()
        await quiet(h.plane)
        assert (await ask(h, "delete", computer))["status"] == "deleting"
        await Transits(h.plane).run()
        await Linked(h.plane).run()
        assert (await get(h, computer)).status == "deleting"
        h.host.connect()
        await until(h, computer, status="deleted")
        assert computer not in h.host.computers


async def test_a_destroy_that_fails_says_why_and_is_asked_again(database, tmp_path):
    """[C9]: until the worker says that nothing is left."""
    async with house(database, tmp_path) as h:
        computer = await over(h)
        h.host.refuse_destroy = {"code": "refused", "message": "The disk is busy."}
        await ask(h, "delete", computer)
        async with asyncio.timeout(5):
            while (await get(h, computer)).error is UNSET:
                await asyncio.sleep(0.005)  # a report of the link gives this test no event
        assert (await get(h, computer)).error.message == "The disk is busy."
        await Transits(h.plane).run()
        await Linked(h.plane).run()
        await quiet(h.plane)
        assert len(told(h, "computer.destroy", computer)) == 1, "not before its time"
        h.host.refuse_destroy = None
        await execute(h, "UPDATE computers SET deadline_at = now()")
        await Transits(h.plane).run()
        await until(h, computer, status="deleted")
        assert (await get(h, computer)).error is UNSET


async def test_another_control_plane_deletes_what_this_ones_worker_has(database, tmp_path):
    """I6, [C9]"""
    async with house(database, tmp_path) as h, beside(h, tmp_path) as other:
        computer = await over(h)
        assert json.loads((await other.computers.delete(h.principal, computer, None)).body)["status"] == "deleting"
        await until(h, computer, status="deleted")


async def test_leftovers_of_deleted_computers_are_destroyed_and_nothing_else_is(database, tmp_path):
    """[C9], I11: what this database doesn't know, or knew under an earlier fence only, keeps its files."""
    async with house(database, tmp_path) as h:
        deleted, later = await over(h), await over(h)
        unknown, strange = new_id(), "not an id"
        for computer in (deleted, later):
            await ask(h, "delete", computer)
            await until(h, computer, status="deleted")
        h.host.disconnect()
        h.host.computers |= {
            deleted: {"fence": 1, "state": "stopped"},
            later: {"fence": 99, "state": "stopped"},
            unknown: {"fence": 1, "state": "stopped"},
            strange: {"fence": [7, 1], "state": "stopped"},
        }
        h.host.said.clear()
        h.host.connect()
        await until_told(h, "computer.destroy", deleted)
        h.host.link.send(control("renew"))
        await h.host.told("renewed")
        assert set(h.host.computers) == {later, unknown, strange}
        assert [said["computer"] for said in h.host.said if said["t"] == "computer.destroy"] == [deleted]
        assert (await get(h, deleted)).status == "deleted"


async def test_a_stale_report_neither_revives_nor_deletes_a_computer(database, tmp_path):
    """I4: what is said of an earlier placement, or of destroying one that nobody deletes."""
    async with house(database, tmp_path) as h:
        _, _, living = await warm(h)
        computer = await over(h)
        answer, h.host._computer_destroy = h.host._computer_destroy, lambda said: None
        fence = h.host.computers[computer]["fence"]
        await ask(h, "delete", computer)
        await until_told(h, "computer.destroy", computer)
        for members in ({"state": "running"}, {"state": "gone", "reason": "exited"}, {"state": "asleep"}, {"state": "failed"}):
            h.host.link.send(control("computer.state", computer=computer, fence=fence, **members))
        h.host.link.send(control("computer.state", computer=living, fence=99, state="gone", reason="destroyed"))
        h.host.link.send(control("computer.state", computer=living, fence=0, state="gone", reason="destroyed"))
        h.host.link.send(control("renew"))
        await h.host.told("renewed")
        assert (await get(h, computer)).status == "deleting" and (await get(h, living)).status == "available"
        answer(told(h, "computer.destroy", computer)[0])
        await until(h, computer, status="deleted")


# --- races ------------------------------------------------------------------------------------------------------------------------


async def race(h: House, computer: str, first: Any, second: Any) -> tuple[Any, Any]:
    """Let two requests in one after the other, in this order: both wait for the Computer's row, which PostgreSQL grants in order."""
    await quiet(h.plane)
    holder = await h.database.dedicated()
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT FROM computers WHERE id = $1 FOR UPDATE", computer)
        tasks = []
        for number, work in enumerate((first, second), 1):
            tasks.append(asyncio.ensure_future(work()))
            async with asyncio.timeout(5):
                while await _waiting(h) < number:
                    await asyncio.sleep(0)  # the database tells nobody that somebody waits
        await transaction.rollback()
        one, two = await asyncio.gather(*tasks, return_exceptions=True)
        return one, two
    finally:
        await holder.close()


async def _waiting(h: House) -> int:
    async with h.database.connection() as connection:
        return await connection.fetchval(
            """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                AND wait_event IN ('transactionid', 'tuple')"""
        )


async def test_of_a_deletion_and_a_session_that_comes_on_it_the_first_wins(database, tmp_path):
    """[C9], [S2]"""
    async with house(database, tmp_path) as h:
        computer = await make(h)
        made, refused = await race(h, computer, lambda: h.create(None, computer_id=computer), lambda: ask(h, "delete", computer))
        assert isinstance(refused, ComputerBusy) and (await get(h, computer)).open_sessions == 1
        assert made["session"]["id"]
        computer = await make(h)
        deleted, refused = await race(h, computer, lambda: ask(h, "delete", computer), lambda: h.create(None, computer_id=computer))
        assert deleted["status"] == "deleted" and isinstance(refused, ComputerNotFound)


@pytest.mark.parametrize("how", ["wake", "hibernate", "recover"])
async def test_of_a_deletion_and_a_wake_or_a_sleep_both_orders_end_deleted(database, tmp_path, how):
    """[C9]: a wake that came first is ended by the deletion, one that comes later is refused."""
    async with house(database, tmp_path) as h:
        computer = await over(h)
        first, deleted = await race(h, computer, lambda: ask(h, how, computer), lambda: ask(h, "delete", computer))
        assert first["status"] == "available" and deleted["status"] == "deleting"
        await until(h, computer, status="deleted")
        computer = await over(h)
        deleted, refused = await race(h, computer, lambda: ask(h, "delete", computer), lambda: ask(h, how, computer))
        assert deleted["status"] == "deleting" and isinstance(refused, (ComputerDeleting, ComputerNotFound))
        await until(h, computer, status="deleted")


async def test_an_enqueue_keeps_its_computer_and_a_deletion_comes_only_after_the_close(database, tmp_path):
    """[C9], [S8]: an open Session's Computer is never deleted, so its Turn runs, whatever the order."""
    async with house(database, tmp_path) as h:
        session, process, computer = await warm(h)
        for _ in range(5):
            turn, refused = await asyncio.gather(h.enqueue(session), ask(h, "delete", computer), return_exceptions=True)
            assert isinstance(refused, ComputerBusy)
            await process.began(turn["id"])
            process.settle(turn["id"])
            await h.turn(session, turn["id"])


# --- by age -----------------------------------------------------------------------------------------------------------------------


async def pass_days(h: House, days: float) -> None:
    for statement in ("UPDATE sessions SET closed_at = closed_at - $1 * interval '1 day'",
                      "UPDATE computers SET created_at = created_at - $1 * interval '1 day'"):  # fmt: skip
        await execute(h, statement, days)


async def test_a_computer_assigned_by_itself_goes_seven_days_after_its_last_session(database, tmp_path):
    """[C9]: it says when; a Session that comes on it in time keeps it."""
    async with house(database, tmp_path) as h:
        computer = await over(h)
        async with h.database.connection() as connection:
            seven = await connection.fetchval("SELECT closed_at + interval '7 days' FROM sessions WHERE computer_id = $1", computer)
        assert (await get(h, computer)).delete_after == time_text(seven)
        await pass_days(h, 6.9)
        await ComputerExpiry(h.plane).run()
        assert (await get(h, computer)).status == "available"
        again = (await h.create(None, computer_id=computer))["session"]["id"]
        assert (await get(h, computer)).delete_after is UNSET
        await pass_days(h, 1)
        await ComputerExpiry(h.plane).run()
        assert (await get(h, computer)).status == "available"
        await h.plane.controls.close(h.principal, again, None)
        await pass_days(h, 7.1)
        await ComputerExpiry(h.plane).run()
        await until(h, computer, status="deleted")


async def test_an_environment_keeps_its_computers_for_as_long_as_it_says(database, tmp_path):
    """[C9]: never is for ever; the setting acts at once."""
    async with house(database, tmp_path) as h:
        limits = Limits(h.database)
        computer = await over(h)
        await limits.set(h.principal.environment_id, EnvironmentLimits(computer_retention_ms=None))
        assert (await limits.get(h.principal.environment_id)).computer_retention_ms is None
        await pass_days(h, 1000)
        await ComputerExpiry(h.plane).run()
        shape = await get(h, computer)
        assert shape.status == "available" and shape.delete_after is UNSET
        await limits.set(h.principal.environment_id, EnvironmentLimits(computer_retention_ms=1001 * DAY_MS))
        await ComputerExpiry(h.plane).run()
        assert (await get(h, computer)).status == "available"
        await limits.set(h.principal.environment_id, EnvironmentLimits(computer_retention_ms=999 * DAY_MS))
        await ComputerExpiry(h.plane).run()
        await until(h, computer, status="deleted")


@pytest.mark.parametrize("first", ["session", "expiry"])
async def test_of_its_age_and_a_session_that_comes_on_it_the_first_wins(database, tmp_path, first):
    """[C9]: forced both ways on the Computer's row."""
    async with house(database, tmp_path) as h:
        computer = await over(h)
        await pass_days(h, 8)
        come, expire = lambda: h.create(None, computer_id=computer), ComputerExpiry(h.plane).run
        if first == "session":
            made, _ = await race(h, computer, come, expire)
            assert (await get(h, computer)).status == "available" and made["session"]["id"]
        else:
            _, refused = await race(h, computer, expire, come)
            assert isinstance(refused, (ComputerDeleting, ComputerNotFound))
            await until(h, computer, status="deleted")


async def test_a_process_of_a_computer_that_is_gone_is_settled_though_whoever_noted_it_died(database, tmp_path):
    """I6, [S14]"""
    async with house(database, tmp_path, agent("talker")) as h:
        try:
            session, process, computer = await warm(h)
            await h.plane.controls.close(h.principal, session, None)
            await process.heard("session.end")
            h.host.exits.clear()
            process.alive = False  # nobody says that it ended
            with away_at("after_commit:computer_deleted") as passes:
                await ask(h, "delete", computer)
                async with asyncio.timeout(5):
                    while not passes:
                        await asyncio.sleep(0.001)  # the plane tries again by itself
                await h.plane.stop()
            await take_over(h, tmp_path)
            await LostWorkers(h.plane).run()
            async with asyncio.timeout(5):
                async for _ in h.plane.events.follow(h.principal, session, 0):
                    pass
        finally:
            await h.plane.stop()


async def test_a_deployment_that_moved_makes_computers_of_its_own_template(database, tmp_path):
    """[C1]: of the current one; Agents of another Template are refused on it."""
    async with house(database, tmp_path) as h:
        before = await get(h, await make(h))
        newer = await deploy(h.database, h.principal.environment_id, manifest(agent("talker"), agent("other")))
        after = await get(h, await make(h))
        assert before.deployment_id != newer == after.deployment_id
