"""Workers as people see them: listed, drained, removed. SPEC 11, 13, 14, [C9], [C10], [O1]."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.service.races.forcing import quiet
from tests.service.scripted import House, ScriptedHost, house
from tests.service.test_computers import execute, warm
from tests.service.test_draining import come_back
from tests.service.test_restores import another
from tests.service.test_saves import saving_house

from helmr.control.domain.workers import Leaving, may_remove, state_of
from helmr.control.service.principals import ensure_environment
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.control.upkeep.placement import Placement
from helmr.protocol import jsontext
from helmr.protocol.errors import Forbidden, IdempotencyConflict, InvalidCursor, WorkerNotFound, WorkerRemoved
from helmr.protocol.ids import new_id
from helmr.protocol.link import control
from helmr.protocol.unset import UNSET

pytestmark = pytest.mark.anyio


async def change(h: House, verb: str, key: str | None = None, **options: Any) -> dict[str, Any]:
    workers = h.plane.workers
    if verb == "remove":
        return jsontext.loads((await workers.remove(h.principal, h.host.name, force=options.get("force", False), idempotency_key=key)).body)
    return jsontext.loads((await getattr(workers, verb)(h.principal, h.host.name, key)).body)


async def look(h: House) -> Any:
    """The worker as it stands, once what was asked of it was done as far as that goes now."""
    await h.plane.links.drain_asked()
    await h.plane.workers.finish_removals()
    return await h.plane.workers.get(h.principal, h.host.worker_id)


async def until_state(h: House, state: str) -> Any:
    for _ in range(500):
        found = await look(h)
        if found.state == state:
            return found
    raise AssertionError(f"it stays {found.state}")


async def test_a_worker_is_listed_with_its_room_its_disks_and_what_is_with_it(database, tmp_path):
    """[C7], [C10]: what it offers, what is reserved of that; by id and by name."""
    async with house(database, tmp_path) as h:
        _, process = await h.warm()
        h.host.link.send(control("renew", storage={"total": 1000, "free": 100, "pressed": True}))
        await h.host.told("renewed")
        (item,) = (await h.plane.workers.list(h.principal, None, 10)).items
        assert (item.name, item.state, item.driver, item.version) == ("scripted", "connected", "scripted", "0")
        assert (item.capacity.cpu, item.capacity.cpu_used, item.capacity.memory_used) == (1000.0, 1.0, 1 << 30)
        assert (item.computers.running, item.computers.sleeping, item.computers.stopped) == (1, 0, 0)
        assert (item.storage.total, item.storage.free) == (1000, 100) and item.storage.pressed_since
        assert 0 <= item.silent_seconds < 60 and item.lease_until > item.created_at
        found = await h.plane.workers.get(h.principal, "scripted")
        assert found.id == (await h.plane.workers.get(h.principal, item.id)).id == item.id
        assert [(one.id, one.residency) for one in found.held] == [(process.computer, "running")]


async def test_pages_of_workers_are_walked_by_cursors(database, tmp_path):
    async with house(database, tmp_path) as h:
        for name in ("second", "third"):
            host = ScriptedHost(h.plane, name=name)
            host.connect()
            await host.told("welcome")
        first = await h.plane.workers.list(h.principal, None, 2)
        rest = await h.plane.workers.list(h.principal, first.next_cursor, 2)
        assert [item.name for item in (*first.items, *rest.items)] == ["third", "second", "scripted"] and rest.next_cursor is None
        with pytest.raises(InvalidCursor):
            await h.plane.workers.list(h.principal, "nonsense", 2)


async def test_each_operation_needs_its_permission_and_unknown_workers_are_not_found(database, tmp_path):
    async with house(database, tmp_path) as h:
        w = h.plane.workers
        for lacking, calls in {
            "workers.read": (lambda p: w.list(p, None, 5), lambda p: w.get(p, "scripted")),
            "workers.manage": (
                lambda p: w.drain(p, "scripted", None),
                lambda p: w.undrain(p, "scripted", None),
                lambda p: w.remove(p, "scripted", force=False, idempotency_key=None),
            ),
        }.items():
            poor = replace(h.principal, permissions=h.principal.permissions - {lacking})
            for call in calls:
                with pytest.raises(Forbidden, match=lacking):
                    await call(poor)
        for unknown in ("nobody", new_id(), "removed " + h.host.worker_id):
            with pytest.raises(WorkerNotFound):
                await w.get(h.principal, unknown)
            with pytest.raises(WorkerNotFound):
                await w.drain(h.principal, unknown, None)


async def test_a_key_decides_only_on_workers_that_serve_no_other_environment_and_sees_none_that_serve_others_alone(database, tmp_path):
    """[O1]: a person decides on all."""
    async with house(database, tmp_path) as h:
        async with h.database.connection() as connection:
            other = await ensure_environment(connection, "test", "other")
        stranger = replace(h.principal, environment_id=other)
        assert (await h.plane.workers.get(stranger, "scripted")).held == ()  # it serves all
        with pytest.raises(Forbidden, match="other Environments"):
            await change(h, "drain")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE workers SET environments = ARRAY[$1::uuid]", h.principal.environment_id)
        assert (await h.plane.workers.get(h.principal, "scripted")).environments == ("test/main",)
        with pytest.raises(WorkerNotFound):
            await h.plane.workers.get(stranger, "scripted")
        assert (await h.plane.workers.list(stranger, None, 5)).items == ()
        await change(h, "drain")
        person = replace(stranger, kind="user")
        assert (await h.plane.workers.get(person, "scripted")).environments == ("test/main",)
        await h.plane.workers.undrain(person, "scripted", None)


async def test_a_drain_that_was_asked_for_puts_to_sleep_what_is_idle_and_outlives_a_restart_until_it_is_taken_back(database, tmp_path):
    """[C6]: the Computer stays with its worker, and goes on in the same process."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        told = await change(h, "drain", key="k")
        assert told["drain"]["reason"] == "asked" and told["drain"]["by"] == h.principal.by
        assert await change(h, "drain", key="k") == told
        drained = await until_state(h, "drained")
        assert (drained.computers.running, drained.computers.sleeping) == (0, 1)
        await come_back(h)
        turn = (await h.enqueue(session))["id"]
        assert (await look(h)).state == "drained" and (await h.turn(session, turn, 0))["status"] == "queued"
        explained = await h.plane.explanations.explain(h.principal, session)
        assert explained.state == "worker_draining" and "helmr worker undrain scripted" in explained.sentence
        assert (await change(h, "undrain"))["state"] == "connected"
        h.plane.dispatcher.place(session)
        await process.began(turn)
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"
        assert (await h.kinds(session)).count("session.process_started") == 1


async def test_a_removed_workers_computer_goes_on_elsewhere_from_its_save_and_its_host_is_refused(database, tmp_path):
    """[C5]: drained and saved first, so that no Turn is lost; its name is free, its id is not."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await warm(h)
        told = await change(h, "remove", key="k")
        assert told["state"] == "removing" and told["waits"] == {"running": 1} and told["drain"]["reason"] == "removing"
        with pytest.raises(WorkerRemoved):
            await change(h, "undrain")
        with pytest.raises(IdempotencyConflict):
            await change(h, "remove", key="k", force=True)
        removed = await until_state(h, "removed")
        assert removed.removed_at and removed.name == "scripted" and removed.waits is UNSET
        assert (await h.plane.workers.list(h.principal, None, 5)).items == ()
        await h.plane.links.drain_asked()
        assert not h.host.slots, "its link is cut"
        h.host.connect()
        assert "removed" in (await h.host.told("refused"))["message"]
        with pytest.raises(WorkerRemoved):
            await h.plane.workers.drain(h.principal, h.host.worker_id, None)
        other = await another(h, name="scripted")
        turn = (await h.enqueue(session))["id"]
        await execute(h, "UPDATE workers SET lease_until = lease_until - interval '31 s' WHERE id = $1", h.host.worker_id)
        h.plane.serving_seconds = lambda: 1000.0  # pyright: ignore[reportAttributeAccessIssue]
        h.plane.dispatcher.place(session)
        await quiet(h.plane)
        await LostWorkers(h.plane).run()
        await Placement(h.plane).run()
        process = await other.next_process()
        assert process.opened["recovery"]["reason"] == "restored_from_save"
        await process.began(turn)
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"
        assert (await h.plane.computers.get(h.principal, computer)).residency == "running"


async def test_a_worker_with_files_of_which_there_is_no_save_stays_until_it_is_forced(database, tmp_path):
    """Nothing is given up without being told: here there is no object store."""
    async with house(database, tmp_path) as h:
        await h.warm()
        await change(h, "remove")
        for _ in range(20):
            found = await look(h)
        assert found.state == "removing" and found.waits == {"unsaved": 1}
        assert (await change(h, "remove", force=True))["state"] == "removed"
        again = jsontext.loads((await h.plane.workers.remove(h.principal, found.id, force=False, idempotency_key=None)).body)
        assert again["state"] == "removed", "again changes nothing"


async def test_what_runs_on_a_worker_that_is_removed_by_force_is_lost_with_its_lease_and_not_before(database, tmp_path):
    """I8: what runs there does not know yet, so nothing else may; its process's end is `worker_lost` [S14]."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        assert (await change(h, "remove", force=True))["computers"]["running"] == 1
        h.plane.serving_seconds = lambda: 1000.0  # pyright: ignore[reportAttributeAccessIssue]
        await LostWorkers(h.plane).run()
        assert (await h.turn(session, turn, 0))["status"] == "running"
        h.host.link.send(control("renew"))
        await h.plane.links.drain_asked()
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT lease_until > clock_timestamp() FROM workers")
        await execute(h, "UPDATE workers SET lease_until = clock_timestamp() - interval '31 s'")
        await LostWorkers(h.plane).run()
        settled = await h.turn(session, turn)
        assert (settled["status"], settled["error"]["code"]) == ("interrupted", "worker_lost")


async def test_a_computer_that_never_ran_on_a_removed_worker_goes_to_another_one(database, tmp_path):
    async with house(database, tmp_path) as h:
        h.host.refuse_computers = {"code": "worker_draining", "message": "This worker is draining."}
        made = await h.create("new")
        session = made["session"]["id"]
        await h.until(session, "session.process_failed")
        await execute(h, "UPDATE computers SET worker_id = $1", h.host.worker_id)
        await change(h, "remove", force=True)
        await h.plane.workers.finish_removals()
        other = await another(h)
        h.plane.dispatcher.place(session)
        await (await other.next_process()).began(made["turn"]["id"])


def test_a_workers_state_is_named_by_what_weighs_most() -> None:
    calm = {"alive": True, "draining": False, "running": 1, "removing": False, "removed": False}
    named = {
        (): "connected",
        ("draining",): "draining",
        ("draining", "running=0"): "drained",
        ("alive=0", "draining"): "away",
        ("removing", "alive=0"): "removing",
        ("removing", "removed"): "removed",
    }
    for changed, name in named.items():
        facts = {word.partition("=")[0]: int(word.partition("=")[2] or 1) for word in changed}
        assert state_of(**(calm | facts)) == name
    assert may_remove(Leaving(running=0, unsaved=0))
    assert not may_remove(Leaving(running=1, unsaved=0)) and not may_remove(Leaving(running=0, unsaved=1))
