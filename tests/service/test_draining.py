"""A worker that is to go: what runs finishes, nothing begins, what is idle is saved and sleeps, its lease is given back. UD-16."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.service.scripted import House, Process, ScriptedHost, house
from tests.service.test_computers import told, until
from tests.service.test_saves import saving_house, until_saved

from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.protocol.limits import LEASE_SECONDS
from helmr.protocol.link import control

pytestmark = pytest.mark.anyio


async def renew(host: ScriptedHost) -> dict[str, int]:
    """A renewal of a worker that drains; what it is told to wait for."""
    host.said[:] = [said for said in host.said if said["t"] != "renewed"]
    host.link.send(control("renew", draining=True))
    return (await host.told("renewed"))["waits"]


async def until_drained(host: ScriptedHost) -> None:
    """As a worker does it: renewals, until nothing is waited for."""
    async with asyncio.timeout(10):
        while await renew(host):
            await asyncio.sleep(0.005)


async def leave(h: House) -> bool:
    """It goes; whether its lease is over."""
    h.host.link.send(control("leave"))
    await h.host.told("left")
    async with h.database.connection() as connection:
        return bool(await connection.fetchval("SELECT lease_until <= clock_timestamp() FROM workers WHERE name = $1", h.host.name))


async def come_back(h: House) -> None:
    h.host.disconnect()
    h.host.said.clear()
    h.host.connect()
    await h.host.told("welcome")


async def goes_on_in_the_same_process(h: House, session: str, process: Process, turn: str) -> None:
    """The worker is back: the Turn that waited runs where the Session's others ran."""
    await come_back(h)
    h.plane.dispatcher.place(session)
    await process.began(turn)
    process.settle(turn)
    assert (await h.turn(session, turn))["status"] == "completed"
    assert (await h.kinds(session)).count("session.process_started") == 1


@pytest.mark.ud("UD-16")
async def test_an_idle_computer_sleeps_and_goes_on_where_it_was_when_the_worker_is_back(database, tmp_path):
    """[C6]: same process, `init` not rerun; an idle process holds no drain."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        await until_drained(h.host)
        await until(h, process.computer, residency="hibernated")
        assert await leave(h), "nothing of it runs: its lease is over at once"
        turn = (await h.enqueue(session))["id"]
        assert (await h.turn(session, turn, 0))["status"] == "queued"
        await goes_on_in_the_same_process(h, session, process, turn)


@pytest.mark.ud("UD-16")
async def test_what_runs_finishes_and_what_is_queued_behind_it_waits_for_the_next_worker(database, tmp_path):
    """UD-16: it takes no new work, also none that is queued already; each Turn starts once."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        running, queued = [(await h.enqueue(session))["id"] for _ in range(2)]
        await process.began(running)
        assert await renew(h.host) == {"turns": 1}
        process.settle(running)
        assert (await h.turn(session, running))["status"] == "completed"
        await until_drained(h.host)
        assert (await h.turn(session, queued, 0))["status"] == "queued" and queued not in process.started
        assert (await h.plane.explanations.explain(h.principal, session)).state == "worker_draining"
        assert await leave(h)
        await come_back(h)
        h.plane.dispatcher.place(session)
        await process.began(queued)
        process.settle(queued)
        assert (await h.turn(session, queued))["status"] == "completed"
        assert process.started.count(queued) == process.started.count(running) == 1


@pytest.mark.ud("UD-16")
async def test_what_runs_beyond_the_limit_goes_on_and_is_taken_up(database, tmp_path):
    """[C3], I8: its lease runs on, since its guests do; what was queued goes on behind it."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        running, queued = [(await h.enqueue(session))["id"] for _ in range(2)]
        await process.began(running)
        assert await renew(h.host) == {"turns": 1}
        assert not await leave(h)
        h.host.disconnect()
        process.settle(running)
        await come_back(h)
        assert (await h.turn(session, running))["status"] == "completed"
        await process.began(queued)
        process.settle(queued)
        assert (await h.turn(session, queued))["status"] == "completed"
        assert (await h.kinds(session)).count("session.process_started") == 1


@pytest.mark.ud("UD-16")
async def test_what_was_enqueued_to_an_idle_session_of_a_draining_worker_does_not_begin_there(database, tmp_path):
    """UD-16: between the first renewal and the sleep of its Computer."""
    async with house(database, tmp_path) as h:
        h.host.hesitant = True
        session, process = await h.warm()
        assert await renew(h.host) == {"computers": 1}
        turn = (await h.enqueue(session))["id"]
        assert (await h.turn(session, turn, 0))["status"] == "queued"
        h.host.fall_asleep(process.computer)
        await until_drained(h.host)
        assert turn not in process.started


@pytest.mark.ud("UD-16")
async def test_a_process_that_gets_ready_on_a_draining_worker_claims_nothing_and_sleeps(database, tmp_path):
    """[S9]: its `init` ends, and is not run again; its first Turn begins when the worker is back."""
    async with house(database, tmp_path) as h:
        h.host.auto_init = False
        made = await h.create("first")
        session, turn = made["session"]["id"], made["turn"]["id"]
        process = await h.host.next_process()
        assert await renew(h.host) == {"processes": 1}
        process.say("init.done")
        await h.until(session, "session.process_started")
        await until_drained(h.host)
        assert (await h.turn(session, turn, 0))["status"] == "queued" and not process.started
        assert await leave(h)
        await goes_on_in_the_same_process(h, session, process, turn)


@pytest.mark.ud("UD-16")
async def test_a_computer_that_cannot_sleep_is_left_alone_and_told(database, tmp_path):
    """[C6]: it has HTTP in flight, say; the drain waits for it, and starts nothing on it."""
    async with house(database, tmp_path) as h:
        h.host.refuse_sleep = {"code": "computer_busy", "message": "In flight: a download."}
        session, process = await h.warm()
        await renew(h.host)
        await until(h, process.computer, residency="running")
        assert await renew(h.host) == {"busy": 1}
        assert len(told(h, "computer.sleep", process.computer)) == 1
        turn = (await h.enqueue(session))["id"]
        assert (await h.turn(session, turn, 0))["status"] == "queued"
        assert not await leave(h)
        await come_back(h)
        await process.began(turn)


@pytest.mark.ud("UD-16")
async def test_it_is_saved_before_it_sleeps_and_another_worker_takes_its_place_from_that(database, tmp_path):
    """[C5]: nothing is lost, so nobody is held, when the worker doesn't come back."""
    async with saving_house(database, tmp_path) as h:
        h.host.hold_saves = True
        session, process = await h.warm()
        await renew(h.host)
        assert await renew(h.host) == {"saves": 1}
        (order,) = told(h, "computer.save", process.computer)
        assert not told(h, "computer.sleep", process.computer)
        h.host.report_save(order)
        await until_saved(h, process.computer)
        await until_drained(h.host)
        assert await leave(h)
        h.host.disconnect()
        other = ScriptedHost(h.plane, name="other")
        other.connect()
        await other.told("welcome")
        turn = (await h.enqueue(session))["id"]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE workers SET lease_until = lease_until - interval '31 seconds' WHERE name = $1", h.host.name)
        h.plane.health.reachable_since -= LEASE_SECONDS
        h.plane._started_at -= LEASE_SECONDS
        await LostWorkers(h.plane).run()
        h.plane.dispatcher.place(session)
        following = await other.next_process()
        await following.began(turn)
        following.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"
        kinds = await h.kinds(session)
        assert "computer.restored" in kinds and "session.held" not in kinds
        assert _reason(await h.events(session)) == "restored_from_save"


@pytest.mark.ud("UD-16")
async def test_a_computer_that_a_draining_worker_did_not_take_goes_to_another_one_and_nobody_is_blamed(database, tmp_path):
    """[S14]: placed a moment before the worker was told to go; drains are no strikes."""
    async with house(database, tmp_path) as h:
        h.host.refuse_computers = {"code": "worker_draining", "message": "This worker is draining."}
        made = await h.create("new")
        session = made["session"]["id"]
        await h.until(session, "session.process_failed")
        await renew(h.host)
        other = ScriptedHost(h.plane, name="other")
        other.connect()
        await other.told("welcome")
        h.plane.dispatcher.place(session)
        process = await other.next_process()
        await process.began(made["turn"]["id"])
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT strikes FROM sessions WHERE id = $1", session) == 0


def _reason(events: list[dict[str, Any]]) -> str:
    return [event["data"] for event in events if event["kind"] == "session.process_started"][-1]["reason"]
