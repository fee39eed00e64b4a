"""Triggers fire once for each planned instant, and for no other. SPEC [T1]-[T3], [C9], [S5]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.effort import often
from tests.service.races.forcing import away_at
from tests.service.races.planes import successor, take_over
from tests.service.scheduled import MONDAY, Hours, agent, hours, minutes, planned, scheduled, trigger

from helmr.control.domain.windows import Rule, decide_windows
from helmr.control.service.limits import AdmissionLimit, EnvironmentLimits, Limits
from helmr.control.service.principals import Principal
from helmr.control.upkeep.cron import SAFETY_SECONDS, CronFirings, OldFirings
from helmr.control.upkeep.placement import Placement
from helmr.protocol import jsontext
from helmr.protocol.errors import (
    AgentNotFound,
    DatabaseUnavailable,
    DefinitionInvalid,
    Forbidden,
    InvalidCursor,
    InvalidValue,
    TriggerNotFound,
)
from helmr.protocol.manifest import TriggerManifest
from helmr.protocol.wire import to_wire

pytestmark = pytest.mark.anyio

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
NIGHTLY = trigger("nightly", "0 1 * * *")


@pytest.fixture
def movable(database_server) -> Iterator[str]:
    """A migrated database whose clock can be moved."""
    dsn = database_server.borrow(moving=True)
    yield dsn
    database_server.give_back(dsn)


async def test_a_firing_is_a_session_of_its_own_on_a_computer_of_its_own(movable, tmp_path):
    """[T1], [C9]: source `schedule`, the planned time in the timeline, and a day for its Computer."""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        await t.tick(MONDAY + 59 * MINUTE)
        assert await t.sessions() == []
        await t.tick(MONDAY + HOUR)
        process = await t.h.host.next_process()
        (row,) = await t.sessions()
        session = str(row["id"])
        turn = (await t.h.session(session))["initial_turn"]["id"]
        await process.began(turn)
        process.settle(turn)
        settled = await t.h.turn(session, turn)
        assert (settled["status"], settled["source"]) == ("completed", {"kind": "schedule"})
        assert settled["input"] == [{"type": "text", "text": "by itself"}]
        said = {"sequence": 1, "source": {"kind": "schedule"}}
        assert await t.queued(session) == said | {"trigger": {"id": "nightly", "planned_at": "2025-03-03T01:00:00.000000Z", "missed": 0}}
        assert (await t.h.kinds(session))[:2] == ["computer.assigned", "turn.queued"]
        info = await t.info("nightly")
        assert info["last_firing"]["session_id"] == session and info["last_firing"]["status"] == "fired"
        assert info["next_fires"][0] == "2025-03-04T01:00:00.000000Z" and len(info["next_fires"]) == 5
        assert (info["missed"], info["active_since"][:16]) == (0, "2025-03-03T00:00")

        await t.h.plane.controls.close(t.h.principal, session, None)
        computer = await t.h.plane.computers.get(t.h.principal, str(row["computer_id"]))
        closed = (await t.h.session(session))["closed_at"]
        assert not computer.explicit
        assert computer.delete_after == closed.replace("03T", "04T"), "24 hours"
        await t.tick(MONDAY + 25 * HOUR)
        assert len(await t.sessions()) == 2


@pytest.mark.ud("UD-73")
async def test_three_triggers_with_one_expression_are_three(movable, tmp_path):
    """[T3]: a trigger is its id within its Agent, never its expression."""
    same = "*/5 * * * *"
    both = scheduled(trigger("one", same), trigger("two", same)), scheduled(trigger("one", same), name="other")
    async with hours(movable, tmp_path, *both) as t:
        for at in minutes(MONDAY + 5 * MINUTE, 3, step=5):
            await t.tick(at)
        assert [row["agent"] for row in await t.sessions()].count("talker") == 6
        assert len(await t.sessions()) == 9
        assert planned(await t.firings("two")) == ["03 00:05", "03 00:10", "03 00:15"]
        first = await t.h.plane.triggers.list(t.h.principal, None, 2)
        rest = await t.h.plane.triggers.list(t.h.principal, first.next_cursor, 2)
        assert [(item.agent, item.trigger) for item in (*first.items, *rest.items)] == [
            ("other", "one"), ("talker", "one"), ("talker", "two"),
        ]  # fmt: skip
        assert rest.next_cursor is None


@pytest.mark.ud("UD-72")
async def test_of_five_schedulers_at_once_one_fires(movable, tmp_path):
    """[T1]: a barrier lets all of them in at the same moment, tick after tick, and one of them dies at each commit now and then."""
    ticks = often(8, soak=1000)
    async with hours(movable, tmp_path, scheduled(trigger("often", "* * * * *"), trigger("too", "* * * * *"))) as t:
        t.h.host.disconnect()
        planes = [await successor(t.h, tmp_path) for _ in range(4)]
        try:
            for number, at in enumerate(minutes(MONDAY + MINUTE, ticks)):
                await t.set(at)
                barrier = asyncio.Barrier(5)

                async def scheduler(plane, barrier=barrier):
                    await barrier.wait()
                    await plane.firings.fire_due(10)

                if number % 4 == 3:
                    with away_at(f"{('before_commit', 'after_commit')[number // 4 % 2]}:fire_trigger"):
                        await asyncio.gather(*map(scheduler, (t.h.plane, *planes)), return_exceptions=True)
                    await t.tick()
                else:
                    await asyncio.gather(*map(scheduler, (t.h.plane, *planes)))
        finally:
            for plane in planes:
                await plane.stop()
        expected = [f"{at:%d %H:%M}" for at in minutes(MONDAY + MINUTE, ticks)]
        for name in ("often", "too"):
            assert await t.firings(name) == [(at, "fired", 0) for at in expected]
        assert len(await t.sessions()) == 2 * ticks


@pytest.mark.ud("UD-72")
async def test_a_scheduler_whose_look_came_too_late_passes_over(movable, tmp_path):
    """[T1]: all read what is due, one has the window, and whoever still waits for the Environment then finds nothing."""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        await t.set(MONDAY + HOUR)
        other = await successor(t.h, tmp_path)
        holder = await t.h.database.dedicated()
        try:
            async with holder.transaction():
                await holder.execute("SELECT FROM environments FOR UPDATE")
                runs = [asyncio.ensure_future(plane.firings.fire_due(10)) for plane in (t.h.plane, other)]
                await waiting(holder, 2)
            await asyncio.gather(*runs)
        finally:
            await holder.close()
            await other.stop()
        assert await t.firings() == [("03 01:00", "fired", 0)]
        # A clock that goes back (a failover) finds the same instant again, and its row.
        await t.rows("UPDATE trigger_windows SET planned_at = $1, due_at = $1", MONDAY + HOUR)
        await t.tick()
        assert len(await t.sessions()) == 1


async def waiting(connection, count: int) -> None:
    async with asyncio.timeout(5):
        while True:
            found = await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            if found >= count:
                return
            await asyncio.sleep(0)


@pytest.mark.ud("UD-72")
@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_a_scheduler_that_dies_at_the_commit_fires_once_in_the_end(movable, tmp_path, point):
    """[T1], STYLE 18: its successor fires what was not committed, and places what was."""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        await t.set(MONDAY + HOUR)
        with away_at(f"{point}:fire_trigger"), pytest.raises(DatabaseUnavailable):
            await t.tick()
        assert len(await t.sessions()) == (1 if point == "after_commit" else 0)
        await take_over(t.h, tmp_path)
        await t.tick()
        await Placement(t.h.plane).run()
        process = await t.h.host.next_process()
        (row,) = await t.sessions()
        await process.began((await t.h.session(str(row["id"])))["initial_turn"]["id"])
        assert await t.firings() == [("03 01:00", "fired", 0)]


@pytest.mark.ud("UD-74")
async def test_after_twelve_hours_without_a_control_plane_a_five_minute_job_fires_once(movable, tmp_path):
    """[T3]: the latest missed instant is inside the grace and fires; the others are counted, in the Session's timeline too."""
    async with hours(movable, tmp_path, scheduled(trigger("job", "*/5 * * * *"))) as t:
        await t.tick(MONDAY + 5 * MINUTE)
        await t.tick(MONDAY + 12 * HOUR + 7 * MINUTE)
        assert await t.firings() == [("03 00:05", "fired", 0), ("03 12:05", "fired", 143)]
        late = (await t.sessions())[1]
        assert (await t.queued(late["id"]))["trigger"] == {"id": "job", "planned_at": "2025-03-03T12:05:00.000000Z", "missed": 143}
        assert (await t.info("job"))["missed"] == 143
        await t.tick(MONDAY + 12 * HOUR + 10 * MINUTE)
        assert (await t.firings())[-1] == ("03 12:10", "fired", 0)


@pytest.mark.ud("UD-74")
async def test_what_is_older_than_the_grace_is_missed_and_recorded(movable, tmp_path):
    """[T3]: by default an hour; the Environment may say another one."""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        await t.tick(MONDAY + 2 * HOUR + SECOND)
        assert await t.firings() == [("03 01:00", "missed", 1)]
        assert await t.sessions() == []
        info = await t.info("nightly")
        assert (info["missed"], info["last_firing"]["status"]) == (1, "missed")
        assert "session_id" not in info["last_firing"]
        limits = Limits(t.h.database)
        await limits.set(t.h.principal.environment_id, EnvironmentLimits(trigger_grace_ms=3 * 3_600_000))
        assert (await limits.get(t.h.principal.environment_id)).trigger_grace_ms == 3 * 3_600_000
        await t.tick(MONDAY + 3 * 24 * HOUR + 3 * HOUR)
        assert (await t.firings())[1:] == [("06 01:00", "fired", 2)]
        assert (await t.info("nightly"))["missed"] == 3
        with pytest.raises(InvalidValue):
            EnvironmentLimits(trigger_grace_ms=59_999)


@pytest.mark.ud("UD-75")
async def test_at_capacity_zero_an_instant_is_recorded_when_due_and_runs_when_there_is_room(movable, tmp_path):
    """[T3]: no worker at the tick, one a minute later. Overlap is allowed: the next instant queues a Session of its own."""
    async with hours(movable, tmp_path, scheduled(trigger("job", "*/5 * * * *"))) as t:
        t.h.host.disconnect()
        await t.tick(MONDAY + 5 * MINUTE)
        await t.tick(MONDAY + 10 * MINUTE)
        assert await t.firings() == [("03 00:05", "fired", 0), ("03 00:10", "fired", 0)]
        turns = [(await t.h.session(str(row["id"])))["initial_turn"] for row in await t.sessions()]
        assert [turn["status"] for turn in turns] == ["queued", "queued"]
        await t.set(MONDAY + 11 * MINUTE)
        t.h.host.connect()
        await t.h.host.told("welcome")
        await Placement(t.h.plane).run()
        for _ in range(2):
            process = await t.h.host.next_process()
            said = await process.heard("turn.start")
            process.settle(said["turn"]["id"])
            assert (await t.h.turn(process.session_id, said["turn"]["id"]))["status"] == "completed"


@pytest.mark.ud("UD-75")
async def test_without_an_admission_token_a_firing_waits_for_one(movable, tmp_path):
    """[S5], [T3]: it is recorded when due, tried again by itself, and fires with its planned time."""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        limit = EnvironmentLimits(admission=AdmissionLimit(rate=0.1, burst=1))
        await Limits(t.h.database).set(t.h.principal.environment_id, limit)
        await t.set(MONDAY + HOUR)
        await t.h.create("takes the token")
        await t.tick()
        assert await t.firings() == [("03 01:00", "queued", 0)]
        assert (await t.info("nightly"))["last_firing"]["status"] == "queued"
        assert len(await t.sessions()) == 1
        await t.tick(MONDAY + HOUR + 11 * SECOND)
        assert await t.firings() == [("03 01:00", "fired", 0)]
        assert len(await t.sessions()) == 2
        assert (await t.info("nightly"))["missed"] == 0


async def test_a_firing_that_waits_for_a_token_gives_way_to_the_next_and_ends_with_its_grace(movable, tmp_path):
    """[S5], [T3]: what an Environment can't admit never becomes a backlog, and all of it is counted."""
    async with hours(movable, tmp_path, scheduled(trigger("job", "*/10 * * * *"))) as t:
        limit = EnvironmentLimits(admission=AdmissionLimit(rate=1e-9, burst=1), trigger_grace_ms=15 * 60_000)
        await Limits(t.h.database).set(t.h.principal.environment_id, limit)
        await t.h.create("takes the token")
        await t.tick(MONDAY + 10 * MINUTE)
        await t.tick(MONDAY + 40 * MINUTE)
        assert await t.firings() == [("03 00:10", "missed", 1), ("03 00:40", "queued", 2)]
        await t.promote()
        await t.tick(MONDAY + 56 * MINUTE)
        assert await t.firings() == [("03 00:10", "missed", 1), ("03 00:40", "missed", 3)]
        assert await t.rows("SELECT FROM trigger_windows WHERE due_at IS NOT NULL") == []
        assert (await t.rows("SELECT missed FROM trigger_windows"))[0]["missed"] == 4


# --- promotions ---------------------------------------------------------------------------------------------------------------------


async def test_promotions_open_and_close_windows(movable, tmp_path):
    """[T3], [D3]: an instant up to the close fires once, with the last Deployment that had the trigger; none after."""
    async with hours(movable, tmp_path, scheduled(trigger("job", "0 * * * *"))) as t:
        (first,) = await t.rows("SELECT d.id FROM deployments d JOIN environments e ON e.current_deployment_id = d.id")
        await t.tick(MONDAY + HOUR)
        await t.set(MONDAY + 2 * HOUR + MINUTE)  # due, and nobody has looked yet
        await t.promote()
        with pytest.raises(TriggerNotFound):
            await t.info("job")
        await t.tick()
        await t.tick(MONDAY + 3 * HOUR)
        assert await t.firings() == [("03 01:00", "fired", 0), ("03 02:00", "fired", 0)]
        assert [row["deployment_id"] for row in await t.sessions()] == [first["id"]] * 2
        await t.set(MONDAY + 4 * HOUR + MINUTE)
        await t.promote(scheduled(trigger("job", "0 * * * *")))
        await t.tick(MONDAY + 5 * HOUR)
        assert planned(await t.firings()) == ["03 01:00", "03 02:00", "03 05:00"], "what passed while it was closed is none of it"
        assert (await t.info("job"))["active_since"][:16] == "2025-03-03T04:01"


async def test_a_trigger_that_stays_keeps_its_window_and_its_place(movable, tmp_path):
    """[T3], UD-73: promotions between instants, and when one is due: neither twice nor never, and by the newest Deployment."""
    async with hours(movable, tmp_path, scheduled(trigger("job", "*/5 * * * *"))) as t:
        for number, at in enumerate(minutes(MONDAY + 5 * MINUTE, 4, step=5)):
            await t.set(at)
            newest = await t.promote(scheduled(trigger("job", " */5  * * * *"), max_turn_duration_ms=1000 + number))
            await t.tick()
            await t.promote(scheduled(trigger("job", "*/5 * * * *"), max_turn_duration_ms=2000 + number))
            await t.tick()
            assert str((await t.sessions())[-1]["deployment_id"]) == newest
        assert planned(await t.firings()) == ["03 00:05", "03 00:10", "03 00:15", "03 00:20"]
        assert len(await t.rows("SELECT FROM trigger_windows")) == 1
        assert (await t.info("job"))["active_since"][:16] == "2025-03-03T00:00"


async def test_another_schedule_under_the_same_id_is_another_window(movable, tmp_path):
    """[T3]: what was due by the old one fires, then the new one applies; an instant that both have fires once."""
    async with hours(movable, tmp_path, scheduled(trigger("job", "*/5 * * * *"))) as t:
        await t.set(MONDAY + 11 * MINUTE)
        current = await t.promote(scheduled(trigger("job", "*/20 * * * *")))
        await t.tick()
        assert await t.firings() == [("03 00:10", "fired", 1)]
        assert str((await t.sessions())[0]["deployment_id"]) == current, "the current one still has the trigger"
        await t.tick(MONDAY + 19 * MINUTE)
        await t.tick(MONDAY + 20 * MINUTE)
        await t.promote(scheduled(trigger("job", "*/20 * * * *", "Europe/Berlin")))
        await t.tick()
        assert planned(await t.firings()) == ["03 00:10", "03 00:20"]
        assert len(await t.rows("SELECT FROM trigger_windows")) == 3


@pytest.mark.parametrize("first", ["firing", "promotion"])
async def test_of_a_firing_and_a_promotion_that_takes_the_trigger_away_both_orders_fire_once(movable, tmp_path, first):
    """[T3], forced: whichever waits for the other."""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        await t.set(MONDAY + HOUR)
        holder, watcher = await t.h.database.dedicated(), await t.h.database.dedicated()
        works = {"firing": lambda: t.h.plane.firings.fire_due(10), "promotion": lambda: t.promote()}
        order = [first, *(works.keys() - {first})]
        try:
            runs = []
            async with holder.transaction():
                await holder.execute("SELECT FROM environments FOR UPDATE")
                for count, name in enumerate(order, 1):
                    runs.append(asyncio.ensure_future(works[name]()))
                    await waiting(watcher, count)
            await asyncio.gather(*runs)
        finally:
            await holder.close()
            await watcher.close()
        await t.tick()
        assert await t.firings() == [("03 01:00", "fired", 0)]
        await t.tick(MONDAY + 25 * HOUR)
        assert len(await t.sessions()) == 1


async def test_windows_that_an_older_control_plane_left_out_are_set_as_of_when_they_are_found(movable, tmp_path):
    """[T3]: during an upgrade, and for what was current before it."""
    async with hours(movable, tmp_path) as t:
        await t.rows("UPDATE environments SET windows_deployment_id = NULL")
        wanted = jsontext.canonical(to_wire((await _manifest(t)) | {"agents": [to_wire(scheduled(NIGHTLY))]}))
        await t.rows("UPDATE deployments SET manifest = $1", wanted)
        t.h.plane = await take_over(t.h, tmp_path)  # which has not decoded the other one
        await t.tick()
        assert (await t.info("nightly"))["next_fires"][0] == "2025-03-03T01:00:00.000000Z"
        await t.tick(MONDAY + HOUR)
        assert await t.firings() == [("03 01:00", "fired", 0)]
        await t.rows("UPDATE environments SET current_deployment_id = NULL")
        await t.tick()
        await t.tick(MONDAY + 25 * HOUR)
        assert len(await t.sessions()) == 1
        assert (await t.h.plane.triggers.list(t.h.principal, None, 50)).items == ()


async def _manifest(t: Hours) -> dict:
    (row,) = await t.rows("SELECT manifest FROM deployments d JOIN environments e ON e.current_deployment_id = d.id")
    return json.loads(row["manifest"])


# --- what is refused, what is said, what is forgotten -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (TriggerManifest(id="t", schedule="0 25 * * *", timezone="UTC", input="x"), "hour"),
        (TriggerManifest(id="t", schedule="0 0 * * *", timezone="Mars/Olympus", input="x"), "time zone"),
        (TriggerManifest(id="t", schedule="0 0 31 2 *", timezone="UTC", input="x"), "never fires"),
        (TriggerManifest(id="a b", schedule="0 0 * * *", timezone="UTC", input="x"), "id of its own"),
        (TriggerManifest(id="t", schedule="0 0 * * *", timezone="UTC"), "no input"),
        (TriggerManifest(id="t", schedule="0 0 * * *", timezone="UTC", input=[]), "can't fire"),
    ],
)
async def test_a_publication_with_a_trigger_that_can_not_fire_is_refused(movable, tmp_path, wrong, said):
    """[T1]: whoever published it, before anything changes."""
    async with hours(movable, tmp_path) as t:
        given = await _manifest(t) | {"agents": [to_wire(agent("talker", input_kind="json", triggers=(wrong,)))]}
        with pytest.raises(DefinitionInvalid, match=said):
            await t.h.plane.deployments.publish(t.h.principal, given, True, False, None)
        twice = await _manifest(t) | {"agents": [to_wire(scheduled(NIGHTLY, NIGHTLY))]}
        with pytest.raises(DefinitionInvalid, match="id of its own"):
            await t.h.plane.deployments.publish(t.h.principal, twice, True, False, None)


async def test_a_trigger_that_can_not_fire_holds_up_no_other(movable, tmp_path):
    """[T3]: its zone is gone from this host, say; it is tried again, and loses nothing."""
    async with hours(movable, tmp_path, scheduled(trigger("broken", "0 1 * * *"), NIGHTLY)) as t:
        await t.rows("UPDATE trigger_windows SET timezone = 'Mars/Olympus' WHERE trigger = 'broken'")
        await t.tick(MONDAY + HOUR)
        assert await t.firings() == [("03 01:00", "fired", 0)]
        assert (await t.info("broken"))["next_fires"] == []
        await t.rows("UPDATE trigger_windows SET timezone = 'UTC' WHERE trigger = 'broken'")
        await t.tick(MONDAY + HOUR + 61 * SECOND)
        assert await t.firings("broken") == [("03 01:00", "fired", 0)]


async def test_a_channel_of_slack_that_nobody_connected_is_said_and_stops_no_firing(movable, tmp_path):
    """[T1], SPEC 15."""
    async with hours(movable, tmp_path, scheduled(trigger("job", "0 1 * * *", slack_channel_id="C1"))) as t:
        await t.tick(MONDAY + HOUR)
        (row,) = await t.sessions()
        said = [event["data"] for event in await t.h.events(str(row["id"])) if event["kind"] == "slack.delivery_unavailable"]
        assert said == [{"reason": "channel_unavailable"}]


async def test_triggers_of_another_environment_are_unknown(movable, tmp_path):
    """[O1], and the permission."""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        other = Principal(id=t.h.principal.id, environment_id=str(t.h.principal.id), kind="api_key", permissions=t.h.principal.permissions)
        with pytest.raises(AgentNotFound):
            await t.h.plane.triggers.get(other, "talker", "nightly")
        with pytest.raises(TriggerNotFound):
            await t.h.plane.triggers.get(t.h.principal, "talker", "daily")
        assert (await t.h.plane.triggers.list(other, None, 50)).items == ()
        nobody = Principal(
            id=t.h.principal.id, environment_id=t.h.principal.environment_id, kind="api_key", permissions=frozenset({"sessions.read"})
        )
        with pytest.raises(Forbidden):
            await t.h.plane.triggers.list(nobody, None, 50)
        with pytest.raises(InvalidCursor):
            await t.h.plane.triggers.list(t.h.principal, "no cursor", 50)


async def test_old_records_are_forgotten_but_the_newest_of_each_trigger(movable, tmp_path):
    """[T3]"""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        await t.tick(MONDAY + HOUR)
        await t.tick(MONDAY + 25 * HOUR)
        await t.promote()
        await t.set(MONDAY + 40 * 24 * HOUR)
        await OldFirings(t.h.plane).run()
        assert planned(await t.firings()) == ["04 01:00"]
        assert await t.rows("SELECT FROM trigger_windows") == []


async def test_the_duty_sleeps_until_the_next_instant(movable, tmp_path):
    """No later than it, whatever the leader's jitter; and never long, since another control plane may promote."""
    async with hours(movable, tmp_path, scheduled(NIGHTLY)) as t:
        duty = CronFirings(t.h.plane)
        await duty.run()
        assert duty.interval == SAFETY_SECONDS
        await t.set(MONDAY + HOUR - 0.6 * SECOND)
        await duty.run()
        assert 0 < duty.interval * 1.1 <= 0.6
        await t.tick(MONDAY + HOUR)
        assert len(await t.sessions()) == 1


def test_what_a_promotion_does_to_windows() -> None:
    """[T3], UD-73"""
    old, new = Rule("0 1 * * *", "UTC"), Rule("0 2 * * *", "UTC")
    change = decide_windows(
        {("a", "stays"): old, ("a", "goes"): old, ("a", "changes"): old}, {("a", "stays"): old, ("a", "changes"): new, ("b", "stays"): old}
    )
    assert change.keep == {("a", "stays")}
    assert change.close == {("a", "goes"), ("a", "changes")}
    assert change.open == {("a", "changes"), ("b", "stays")}
