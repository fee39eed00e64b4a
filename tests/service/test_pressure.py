"""Sessions on a host whose disks are full are held, and go on by themselves when there is room. SPEC [C7], [S17]; UD-44."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.scripted import House, ScriptedHost, agent, house

from helmr.control.service.health import Health
from helmr.protocol.errors import HoldNotReleasable
from helmr.protocol.link import control

pytestmark = pytest.mark.anyio


async def tell(h: House, host: ScriptedHost, pressed: bool) -> None:
    """A renewal, as a host makes it when its disks turn; all that follows has been done when this returns."""
    host.said.clear()
    host.link.send(control("renew", storage={"total": 100, "free": 5 if pressed else 50, "pressed": pressed}))
    await host.told("renewed")
    await h.plane.pressure.settle()


async def hold_of(h: House, session: str) -> dict[str, Any]:
    (hold,) = (await h.session(session))["holds"]
    return hold


async def connected(h: House, name: str) -> ScriptedHost:
    host = ScriptedHost(h.plane, name=name)
    host.connect()
    await host.told("welcome")
    return host


@pytest.mark.ud("UD-44")
async def test_what_runs_goes_on_what_is_queued_waits_and_goes_on_by_itself(database, tmp_path):
    """[C7]: explain says why; nobody releases it by hand; the hold and its end stand in the timeline."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        first = (await h.enqueue(session))["id"]
        await process.began(first)
        await tell(h, h.host, True)
        assert (await Health(h.database).vitals()).workers_pressed == 1
        hold = await hold_of(h, session)
        assert (hold["kind"], hold["can_release"]) == ("storage_pressure", False)
        second = (await h.enqueue(session))["id"]
        process.settle(first)
        assert (await h.turn(session, first))["status"] == "completed"
        assert (await h.turn(session, second, 0))["status"] == "queued"
        explained = await h.plane.explanations.explain(h.principal, session)
        assert explained.state == "held" and "disks of its Computer's host are full" in explained.sentence
        assert "Resume" not in explained.sentence
        with pytest.raises(HoldNotReleasable):
            await h.plane.controls.resume(h.principal, session, hold["id"], None)
        await tell(h, h.host, False)
        await process.began(second)
        process.settle(second)
        assert (await h.turn(session, second))["status"] == "completed"
        said = [event for event in await h.events(session) if event["kind"] in ("session.held", "session.resume")]
        assert [(event["kind"], event["data"]["hold_id"]) for event in said] == [
            ("session.held", hold["id"]),
            ("session.resume", hold["id"]),
        ]
        assert said[1]["data"]["by"] == {"kind": "system", "id": "helmr"}


async def test_it_is_held_once_and_released_once_whoever_looks(database, tmp_path):
    """[C7]: the duty, and each renewal, look again and again."""
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        for _ in range(2):
            await tell(h, h.host, True)
            await h.plane.pressure.settle()
        assert len((await h.session(session))["holds"]) == 1
        for _ in range(2):
            await tell(h, h.host, False)
        assert (await h.session(session))["holds"] == []
        kinds = await h.kinds(session)
        assert kinds.count("session.held") == kinds.count("session.resume") == 1


async def test_a_new_session_is_placed_elsewhere_and_waits_where_there_is_no_other_host(database, tmp_path):
    """[C7], [C10]: nothing new comes to a full host, and `explain` says that its disk is why."""
    async with house(database, tmp_path) as h:
        await tell(h, h.host, True)
        made = await h.create("new")
        session = made["session"]["id"]
        explained = await h.plane.explanations.explain(h.principal, session)
        assert explained.state == "waiting_for_capacity" and "disks of 1 worker are full" in explained.sentence
        other = await connected(h, "other")
        h.plane.dispatcher.place(session)
        process = await other.next_process()
        await process.began(made["turn"]["id"])
        assert h.host.starts.empty()


async def test_work_that_any_host_can_do_goes_to_one_with_room_as_long_as_there_is_one(database, tmp_path):
    """UD-44: an image is built, say; a full disk makes no deploy fail that another host could serve."""
    async with house(database, tmp_path) as h:
        other = await connected(h, "other")
        for full, free in ((h.host, other), (other, h.host)):
            await tell(h, free, False)
            await tell(h, full, True)
            end = h.plane.links.any_end(h.principal.environment_id)
            assert end is not None and end.name == free.name
        await tell(h, h.host, True)
        assert h.plane.links.any_end(h.principal.environment_id) is not None, "better one that is full than none"


async def test_a_session_whose_cold_computer_is_there_is_held_when_it_wants_to_start(database, tmp_path):
    """[C7]: before a process of it exists."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        process.die()
        await h.until(session, "session.process_failed")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET retry_at = NULL")
        await tell(h, h.host, True)
        assert (await h.session(session))["holds"] == [], "it starts nothing"
        turn = (await h.enqueue(session))["id"]
        placed, _ = await h.plane.processes.place(session)
        assert placed in ("waiting", "nothing") and h.host.starts.empty(), "it is held already, or will be"
        await h.plane.pressure.settle()
        assert (await hold_of(h, session))["kind"] == "storage_pressure"
        await tell(h, h.host, False)
        following = await h.host.next_process()
        await following.began(turn)


async def test_a_full_host_that_is_given_up_holds_nobody(database, tmp_path):
    """[C7], I8: its Computers are restored elsewhere, and what they wait for there is another disk."""
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        await tell(h, h.host, True)
        h.host.disconnect()
        async with h.database.connection() as connection:
            await connection.execute("UPDATE workers SET lease_until = clock_timestamp() - interval '10 seconds'")
        await h.plane.pressure.settle()
        assert (await hold_of(h, session))["kind"] == "storage_pressure", "it may only be restarting"
        async with h.database.connection() as connection:
            await connection.execute("UPDATE workers SET lease_until = clock_timestamp() - interval '31 seconds'")
        await h.plane.pressure.settle()
        assert (await h.session(session))["holds"] == []


async def test_a_closing_session_loses_what_the_hold_blocks_and_closes(database, tmp_path):
    """[S18]: as with every hold."""
    async with house(database, tmp_path, agent("talker")) as h:
        session, process = await h.warm()
        running = (await h.enqueue(session))["id"]
        await process.began(running)
        queued = (await h.enqueue(session))["id"]
        await h.plane.controls.close(h.principal, session, None)
        await tell(h, h.host, True)
        assert (await h.turn(session, queued))["status"] == "cancelled"
        process.settle(running)
        assert (await h.turn(session, running))["status"] == "completed"
        await h.until(session, "session.closed")
        assert (await h.session(session))["holds"] == []
