"""Saves of Computers: when they are taken, that they converge, who may touch them, what is collected. SPEC [C5], [C9], [X1]; I4, I6."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from structlog.testing import capture_logs
from tests.service.races.forcing import away_at, quiet
from tests.service.races.forcing import until as until_true
from tests.service.races.planes import take_over
from tests.service.scripted import House, agent, house
from tests.service.test_computers import ask, execute, get, make, told, until, until_told, warm

from helmr.control.service.keyring import Keyring
from helmr.control.service.plane import PlaneConfig
from helmr.control.upkeep.collection import Collection
from helmr.control.upkeep.hibernation import Hibernation
from helmr.control.upkeep.linked import Linked
from helmr.control.upkeep.own_storage import OwnStorage
from helmr.control.upkeep.saving import Saving
from helmr.objects import FolderObjects
from helmr.protocol.errors import ComputerDeleting, DatabaseUnavailable, DigestMismatch, Forbidden, SaveDamaged, SaveUnavailable
from helmr.protocol.ids import new_id
from helmr.protocol.link import control
from helmr.protocol.storage import WaterMarks

pytestmark = pytest.mark.anyio


def config(tmp_path: Path) -> PlaneConfig:
    return PlaneConfig(keyring=Keyring({1: b"m" * 32}), objects=FolderObjects(tmp_path / "objects"))


@asynccontextmanager
async def saving_house(database: str, tmp_path: Path, *agents: Any) -> AsyncIterator[House]:
    async with house(database, tmp_path, *agents, config=config(tmp_path)) as h:
        yield h


async def settled_long_ago(h: House, seconds: int = 60) -> None:
    await execute(h, "UPDATE turns SET terminal_at = terminal_at - $1 * interval '1 second' WHERE terminal_at IS NOT NULL", seconds)


async def saves(h: House, computer: str) -> list[Any]:
    return list((await h.plane.computers.saves(h.principal, computer, None, 50)).items)


async def until_saved(h: House, computer: str, count: int = 1) -> None:
    async with asyncio.timeout(5):
        while [item.state for item in await saves(h, computer)].count("complete") < count:
            await asyncio.sleep(0.005)


async def due(h: House, computer: str) -> None:
    """The save that failed is to be tried again now."""
    await execute(h, "UPDATE computers SET save_due_at = now() WHERE id = $1", computer)


async def turn_ends(h: House, session: str, process: Any) -> str:
    turn = (await h.enqueue(session))["id"]
    await process.began(turn)
    process.settle(turn, result=None)
    await h.turn(session, turn)
    return turn


# --- when ----------------------------------------------------------------------------------------------------------------------


async def test_a_computer_is_saved_once_some_time_after_its_turns_have_settled_and_not_again_until_another_one_does(database, tmp_path):
    """[C5]: debounced; the newest complete save is the Computer's, with the instant of which it is."""
    async with saving_house(database, tmp_path) as h:
        session, process, computer = await warm(h)
        await Saving(h.plane).run()
        assert await saves(h, computer) == []
        await execute(h, "UPDATE computers SET save_due_at = NULL")
        await settled_long_ago(h)
        await Saving(h.plane).run()
        await until_saved(h, computer)
        (order,) = told(h, "computer.save", computer)
        assert order["previous"] is None and set(order["keys"]) == {"data", "names"}
        (made,) = await saves(h, computer)
        shown = await get(h, computer)
        assert (made.cause, made.files, shown.save_id, shown.saved_at) == ("turn", 3, made.id, made.started_at)
        await Saving(h.plane).run()
        assert len(told(h, "computer.save", computer)) == 1
        await turn_ends(h, session, process)
        await execute(h, "UPDATE turns SET terminal_at = now() - interval '31 seconds' WHERE sequence = 2")
        await execute(h, "UPDATE saves SET started_at = now() - interval '1 minute'")
        await Saving(h.plane).run()
        await until_saved(h, computer, 2)
        second = told(h, "computer.save", computer)[1]
        assert second["previous"] == hashlib.sha256(order["save"].encode()).hexdigest() and second["keys"] == order["keys"]


async def test_a_running_turn_is_not_counted_as_saved(database, tmp_path):
    """[C5]: the mark is the last Turn settled before the save; the running one may still write."""
    async with saving_house(database, tmp_path) as h:
        session, process, computer = await warm(h)
        running = (await h.enqueue(session))["id"]
        await process.began(running)
        await ask(h, "save", computer)
        await until_saved(h, computer)
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT settled_turn FROM save_marks WHERE session_id = $1", session) == 1
        process.settle(running, result=None)
        await h.turn(session, running)
        async with h.database.connection() as connection:
            await execute(h, "UPDATE turns SET terminal_at = now() - interval '31 seconds' WHERE id = $1", running)
            assert await connection.fetchval("SELECT count(*) FROM computers WHERE save_due_at IS NULL") == 1
        await Saving(h.plane).run()
        await until_saved(h, computer, 2)


async def test_a_save_by_hand_joins_the_one_that_is_under_way_and_an_exact_retry_names_it_again(database, tmp_path):
    """[C5], [S4]: one save at a time for each Computer."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        h.host.hold_saves = True
        first = await ask(h, "save", computer, "k")
        assert await ask(h, "save", computer) == first
        await until_told(h, "computer.save", computer)
        h.host.report_save(told(h, "computer.save", computer)[0])
        await until_saved(h, computer)
        assert await ask(h, "save", computer, "k") == first
        assert (await ask(h, "save", computer))["save_id"] != first["save_id"]


async def test_a_computer_that_is_nowhere_or_going_is_not_saved(database, tmp_path):
    async with saving_house(database, tmp_path) as h:
        computer = await make(h)
        with pytest.raises(SaveUnavailable):
            await ask(h, "save", computer)
        await ask(h, "wake", computer)
        await until(h, computer, residency="running")
        h.host.refuse_destroy = {"code": "busy", "message": "later"}
        await ask(h, "delete", computer)
        with pytest.raises(ComputerDeleting):
            await ask(h, "save", computer)


async def test_an_installation_without_keys_or_store_takes_no_saves(database, tmp_path):
    async with house(database, tmp_path) as h:
        computer = await make(h)
        await ask(h, "wake", computer)
        await until(h, computer, residency="running")
        with pytest.raises(SaveUnavailable):
            await ask(h, "save", computer)


async def test_what_isnt_saved_is_saved_before_its_computer_goes_to_sleep_for_idleness(database, tmp_path):
    """[C5], [C6]: before hibernation; a save that can't be had does not keep it awake."""
    async with saving_house(database, tmp_path, agent("talker", hibernate_after_idle_ms=1)) as h:
        _, _, computer = await warm(h)
        await execute(h, "UPDATE sessions SET idle_at = idle_at - interval '1 hour'")
        await Hibernation(h.plane).run()
        await until_saved(h, computer)
        assert told(h, "computer.sleep", computer) == []
        assert [item.cause for item in await saves(h, computer)] == ["hibernate"]
        await Hibernation(h.plane).run()
        await until(h, computer, residency="hibernated")


async def test_what_processes_wrote_by_themselves_since_the_last_save_is_saved_before_the_sleep_once(database, tmp_path):
    """[C5], [C6]: a server that a Turn has started goes on writing, and no Turn or Command tells."""
    async with saving_house(database, tmp_path, agent("talker", hibernate_after_idle_ms=1)) as h:
        _, _, computer = await warm(h)
        await ask(h, "save", computer)
        await until_saved(h, computer)
        await execute(h, "UPDATE saves SET completed_at = now() - interval '61 seconds'")
        await execute(h, "UPDATE sessions SET idle_at = idle_at - interval '1 hour'")
        await Hibernation(h.plane).run()
        await until_saved(h, computer, 2)
        assert told(h, "computer.sleep", computer) == []
        assert [item.cause for item in await saves(h, computer)] == ["hibernate", "request"]
        await Hibernation(h.plane).run()
        await until(h, computer, residency="hibernated")
        assert len(await saves(h, computer)) == 2


async def test_a_failing_save_does_not_keep_a_computer_awake(database, tmp_path):
    async with saving_house(database, tmp_path, agent("talker", hibernate_after_idle_ms=1)) as h:
        _, _, computer = await warm(h)
        h.host.refuse_saves = {"code": "no_space", "message": "full"}
        await execute(h, "UPDATE sessions SET idle_at = idle_at - interval '1 hour'")
        await Hibernation(h.plane).run()
        async with asyncio.timeout(5):
            while [item.state for item in await saves(h, computer)] != ["failed"]:
                await asyncio.sleep(0.005)
        assert (await saves(h, computer))[0].error.code == "no_space"
        await Hibernation(h.plane).run()
        await until(h, computer, residency="hibernated")


async def test_what_isnt_saved_of_one_that_was_put_to_sleep_is_saved_as_it_sleeps(database, tmp_path):
    """[C5]: nobody waits for the save when its memory is wanted at once; its host saves it frozen."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await ask(h, "hibernate", computer)
        await until(h, computer, residency="hibernated")
        await Saving(h.plane).run()
        await until_saved(h, computer)
        assert (await get(h, computer)).residency == "hibernated"


async def test_a_worker_that_drains_is_told_to_save_before_its_renewal_is_answered(database, tmp_path):
    """[C5]: so that it can wait for what it was told."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        h.host.said.clear()
        h.host.link.send(control("renew", draining=True))
        await h.host.told("renewed")
        kinds = [said["t"] for said in h.host.said]
        assert kinds.index("computer.save") < kinds.index("renewed")
        await until_saved(h, computer)
        assert [item.cause for item in await saves(h, computer)] == ["drain"]
        h.host.said.clear()
        h.host.link.send(control("renew", draining=True))
        await h.host.told("renewed")
        assert told(h, "computer.save", computer) == []


# --- whatever is lost on the way ---------------------------------------------------------------------------------------------------


async def test_an_order_that_was_lost_with_its_link_is_told_again_on_the_next_one(database, tmp_path):
    """I6: and a report that was lost is made again for it."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        h.host.hold_saves = True
        save = (await ask(h, "save", computer))["save_id"]
        await until_told(h, "computer.save", computer)
        h.host.disconnect()
        h.host.said.clear()
        h.host.hold_saves = False
        h.host.connect()
        await h.host.told("welcome")
        await Linked(h.plane).run()
        await until_saved(h, computer)
        assert [item.id for item in await saves(h, computer)] == [save]
        assert (await h.host.told("save.forget"))["save"] == save


@pytest.mark.parametrize("point", ["before_commit:begin_save", "after_commit:begin_save", "before_commit:saved", "after_commit:saved"])
async def test_a_control_plane_that_dies_around_a_commit_of_a_save_leaves_one_that_converges(database, tmp_path, point):
    """STYLE 18, I6: another one goes on from the database alone."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await settled_long_ago(h)
        with away_at(point) as passed:
            if "begin_save" in point:
                with pytest.raises(DatabaseUnavailable):
                    await Saving(h.plane).run()
            else:
                await Saving(h.plane).run()
                await until_true(lambda: passed)
            await take_over(h, tmp_path)
        await Saving(h.plane).run()
        await Linked(h.plane).run()
        await until_saved(h, computer)
        assert [item.state for item in await saves(h, computer)] == ["complete"]


async def test_a_save_of_which_nobody_says_what_became_is_given_up_and_tried_again(database, tmp_path):
    """[C5]: `taking` has a deadline; a late report of it changes nothing."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        h.host.hold_saves = True
        await ask(h, "save", computer)
        await until_told(h, "computer.save", computer)
        await execute(h, "UPDATE saves SET deadline_at = now()")
        await Saving(h.plane).run()
        (given_up,) = await saves(h, computer)
        assert (given_up.state, given_up.error.code) == ("failed", "save_overdue")
        h.host.report_save(told(h, "computer.save", computer)[0])
        await h.host.told("save.forget")
        assert (await saves(h, computer))[0].state == "failed"
        h.host.hold_saves = False
        await due(h, computer)
        await Saving(h.plane).run()
        await until_saved(h, computer)
        assert [item.state for item in await saves(h, computer)] == ["complete", "failed"]


@pytest.mark.parametrize("moved", ["deleted", "lost"])
async def test_a_report_of_an_earlier_placement_changes_nothing(database, tmp_path, moved):
    """I4, [C9]: by its fence."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await warm(h)
        h.host.hold_saves = True
        await ask(h, "save", computer)
        await until_told(h, "computer.save", computer)
        if moved == "deleted":
            await h.plane.controls.cancel(h.principal, session, None)
            await ask(h, "delete", computer)
            await until(h, computer, status="deleted")
        else:
            worker = h.host.worker_id
            await execute(h, "UPDATE workers SET lease_until = now() - interval '31 s'")
            await h.plane.processes.worker_lost(worker)
        h.host.report_save(told(h, "computer.save", computer)[0])
        await h.host.told("save.forget")
        assert [item.state for item in await saves(h, computer)] == ["failed"]
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT save_id FROM computers WHERE id = $1", computer) is None


async def test_a_report_that_makes_no_sense_is_a_failed_save(database, tmp_path):
    """I4: a worker names what it likes; nothing but digests becomes a name in the store."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        h.host.hold_saves = True
        await ask(h, "save", computer)
        await until_told(h, "computer.save", computer)
        h.host.report_save(told(h, "computer.save", computer)[0], packs=["../../etc/passwd"])
        await h.host.told("save.forget")
        assert [(item.state, item.error.code) for item in await saves(h, computer)] == [("failed", "save_malformed")]


# --- objects -------------------------------------------------------------------------------------------------------------------


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def put(h: House, computer: str, data: bytes, *, worker: str | None = None) -> str:
    name = blake3(data).hexdigest()
    await h.plane.save_objects.put(worker or h.host.worker_id, computer, name, pieces(data))
    return name


async def stored(tmp_path: Path, computer: str) -> set[str]:
    return {entry.name.rpartition("/")[2] async for entry in FolderObjects(tmp_path / "objects").list(f"saves/{computer}/")}


async def test_a_worker_stores_parts_of_saves_that_it_is_taking_and_reads_those_of_computers_that_it_has(database, tmp_path):
    """[C5], [X1]: nothing else, and no bytes under another name."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        with pytest.raises(Forbidden):
            await put(h, computer, b"x")
        h.host.hold_saves = True
        await ask(h, "save", computer)
        name = await put(h, computer, b"x")
        with pytest.raises(DigestMismatch):
            await h.plane.save_objects.put(h.host.worker_id, computer, "0" * 64, pieces(b"y"))
        for other in (new_id(), h.host.worker_id):
            with pytest.raises(Forbidden):
                await put(h, new_id() if other == h.host.worker_id else computer, b"z", worker=other)
        with pytest.raises(Forbidden):
            await h.plane.save_objects.get(new_id(), computer, name)
        with await h.plane.save_objects.get(h.host.worker_id, computer, name) as file:
            assert file.read() == b"x"
        assert await stored(tmp_path, computer) == {name}


async def save_of(h: House, computer: str, *parts: bytes) -> list[str]:
    """A complete save that is made of these."""
    h.host.hold_saves = True
    before = len(told(h, "computer.save", computer))
    await ask(h, "save", computer)
    await until_told(h, "computer.save", computer, before + 1)
    names = [await put(h, computer, part) for part in parts]
    h.host.report_save(told(h, "computer.save", computer)[-1], manifest=names[0], packs=names[1:])
    async with asyncio.timeout(5):
        while (await saves(h, computer))[0].state != "complete":
            await asyncio.sleep(0.005)
    return names


def manifest_of(*packs: str) -> bytes:
    """The clear part of a manifest, and something sealed."""
    header = json.dumps({"packs": [[name, 1] for name in packs]}).encode()
    return struct.pack("<8sHI", b"HLMRSAVE", 1, len(header)) + header + b"sealed"


async def test_a_manifest_is_taken_only_with_all_its_packs_and_the_save_before_is_given_up_where_they_are_missing(database, tmp_path):
    """[C5]: a save that builds on what is lost would count as one and be none; the next one stores everything anew."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        first = await save_of(h, computer, b"pack", manifest_of(blake3(b"pack").hexdigest()))
        await execute(h, "UPDATE saves SET manifest = packs[1], packs = ARRAY[manifest]")
        second = await save_of(h, computer, manifest_of(first[0]) + b"of the second")
        (tmp_path / f"objects/saves/{computer}/{first[0]}").unlink()  # an operator's mistake, a disk's fault
        before = len(told(h, "computer.save", computer))
        await ask(h, "save", computer)
        await until_told(h, "computer.save", computer, before + 1)
        assert told(h, "computer.save", computer)[-1]["previous"] == second[0]
        with pytest.raises(SaveDamaged):
            await put(h, computer, manifest_of(first[0]) + b"of the third")
        assert len(await stored(tmp_path, computer)) == 2, "no manifest without its packs"
        h.host.refuse_saves = {"code": "save_damaged", "message": "packs are missing"}
        h.host.report_save(told(h, "computer.save", computer)[-1])
        async with asyncio.timeout(5):
            while [item.state for item in await saves(h, computer)][:2] != ["failed", "failed"]:
                await asyncio.sleep(0.005)
        h.host.refuse_saves = None
        await due(h, computer)
        await Saving(h.plane).run()
        await until_told(h, "computer.save", computer, before + 2)
        assert told(h, "computer.save", computer)[-1]["previous"] == first[1]


async def collect(h: House) -> None:
    await execute(h, "UPDATE computers SET collect_at = now()")
    while await Collection(h.plane).run():
        pass


async def test_what_only_older_saves_needed_is_collected_after_a_while_and_what_the_newest_needs_never(database, tmp_path, monkeypatch):
    """[C5]: the older ones are nobody's to restore from then on."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        first = await save_of(h, computer, b"first", b"shared", b"old")
        second = await save_of(h, computer, b"second", b"new")
        await execute(h, "UPDATE saves SET packs = packs || $1::text[] WHERE manifest = $2", [first[1]], second[0])
        await collect(h)
        assert await stored(tmp_path, computer) == {*first, *second}  # it is young
        assert [item.state for item in await saves(h, computer)] == ["complete", "deleted"]
        monkeypatch.setattr("helmr.control.service.save_objects.KEPT_SECONDS", 0.0)
        await collect(h)
        assert await stored(tmp_path, computer) == {*second, first[1]}
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT collect_at FROM computers WHERE id = $1", computer) is None


async def test_what_a_save_under_way_has_stored_or_may_need_is_not_collected(database, tmp_path, monkeypatch):
    """[C5]: nor what the save before it needs, on which it builds."""
    monkeypatch.setattr("helmr.control.service.save_objects.KEPT_SECONDS", 0.0)
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        base = await save_of(h, computer, b"first", b"base")
        await ask(h, "save", computer)
        part = await put(h, computer, b"part")
        await collect(h)
        assert await stored(tmp_path, computer) == {*base, part}
        await execute(h, "UPDATE saves SET deadline_at = now() WHERE state = 'taking'")
        await Saving(h.plane).run()
        await collect(h)
        assert await stored(tmp_path, computer) == set(base)


async def test_a_control_plane_whose_disk_is_too_full_collects_before_the_time_and_says_so_once(database, tmp_path, monkeypatch):
    """[C7]: what no save needs any more goes at once."""
    monkeypatch.setattr("helmr.control.service.save_objects.KEPT_SECONDS", 0.0)
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await save_of(h, computer, b"first", b"old")
        newest = await save_of(h, computer, b"second", b"new")
        await Collection(h.plane).run()
        assert len(await stored(tmp_path, computer)) == 4, "its time has not come"
        h.plane.disks = (tmp_path,)
        h.plane.storage = WaterMarks(high=1.0, low=1.0)
        duty = OwnStorage(h.plane)
        with capture_logs() as said:
            await duty.run()
            assert len(await stored(tmp_path, computer)) == 4 and said == []
            h.plane.storage = WaterMarks(high=0.0, low=0.0)
            for _ in range(2):
                await duty.run()
        assert await stored(tmp_path, computer) == set(newest)
        assert [line["event"] for line in said] == ["this control plane's disk is too full"]


async def test_a_deleted_computers_saves_and_their_key_are_gone_with_it(database, tmp_path):
    """[C9], [X1]."""
    async with saving_house(database, tmp_path) as h:
        session, _, computer = await warm(h)
        names = await save_of(h, computer, b"first", b"pack")
        other = (await warm(h))[2]
        kept = await save_of(h, other, b"first", b"pack")
        await h.plane.controls.cancel(h.principal, session, None)
        await ask(h, "delete", computer)
        await until(h, computer, status="deleted")
        assert await stored(tmp_path, computer) == set(names)
        await collect(h)
        assert await stored(tmp_path, computer) == set() and await stored(tmp_path, other) == set(kept)
        assert [item.state for item in await saves(h, computer)] == ["deleted"]
        async with h.database.connection() as connection:
            rows = await connection.fetch("SELECT owner_id::text FROM data_keys WHERE purpose = 'computer'")
        assert [row[0] for row in rows] == [other]


async def test_a_collector_that_dies_in_the_middle_leaves_the_rest_to_the_next(database, tmp_path, monkeypatch):
    """STYLE 18."""
    monkeypatch.setattr("helmr.control.service.save_objects.KEPT_SECONDS", 0.0)
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await save_of(h, computer, b"first", b"one", b"two", b"three")
        newest = await save_of(h, computer, b"second", b"four")
        objects = h.plane.save_objects._objects
        deleted, delete = [], objects.delete

        async def dying(name: str) -> None:
            if len(deleted) == 2:
                raise OSError("killed")
            deleted.append(name)
            await delete(name)

        monkeypatch.setattr(objects, "delete", dying)
        await execute(h, "UPDATE computers SET collect_at = now()")
        with pytest.raises(OSError, match="killed"):
            await Collection(h.plane).run()
        assert set(newest) < await stored(tmp_path, computer)
        monkeypatch.setattr(objects, "delete", delete)
        await Collection(h.plane).run()
        assert await stored(tmp_path, computer) == set(newest)
        await quiet(h.plane)
