"""What a process says last, and that it ended, is stored whatever comes between. SPEC [S10], [S14]; DESIGN I4, I6."""

from __future__ import annotations

import asyncio

import pytest
from tests.service.races.forcing import away_at, until
from tests.service.scripted import house

from helmr.control.service import faults
from helmr.control.service.plane import ControlPlane, PlaneConfig
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.objects.folder import FolderStore
from helmr.protocol.errors import DatabaseUnavailable

pytestmark = pytest.mark.anyio


async def running(h):
    """A Session, its process, and the Turn that runs in it."""
    made = await h.create()
    process = await h.host.next_process()
    await process.heard("turn.start")
    return made["session"]["id"], process, made["turn"]["id"]


async def test_a_process_that_breaks_the_protocol_and_ends_at_once_is_lost_like_any_other(database, tmp_path):
    """[S14], I4: its end waits behind what it said before; an offence among that must not take the end away."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        process.say("messages.open", turn=turn)
        process.say("turn.output", turn=turn, content=[{"type": "image", "url": "x"}])
        process.die("killed", signal=9)
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and state["error"]["code"] == "process_lost"


@pytest.mark.ud("UD-19")
@pytest.mark.parametrize("point", ["before_commit:process_ended", "after_commit:process_ended"])
async def test_the_end_of_a_process_is_stored_although_the_database_goes_away(database, tmp_path, point):
    """[S14], I6: a host reports it once for each link; nobody else tells."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        left = [DatabaseUnavailable("The reply was lost.")]

        def lose() -> None:
            if left:
                raise left.pop()

        faults.arm(point, lose)
        try:
            process.die("killed", signal=9)
            state = await h.turn(session, turn)
        finally:
            faults.disarm(point)
        assert not left and state["status"] == "interrupted" and state["error"]["code"] == "process_lost"
        assert [kind for kind in await h.kinds(session) if kind == "session.process_failed"] == ["session.process_failed"]


@pytest.mark.parametrize("asks", [False, True])
async def test_what_a_process_says_after_it_settled_changes_nothing_though_it_comes_with_the_settlement(database, tmp_path, asks):
    """[S10], I1: a flush appends before it settles, and an open question is ended first: a later output would make the settlement stale."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        if asks:
            process.say("question.ask", turn=turn, question={"prompt": [{"type": "text", "text": "?"}], "answer": {"type": "text"}})
        process.settle(turn, "completed", result=1)
        process.output(turn, "late")
        process.settle(turn, "failed", error={"code": "handler_failed"})
        state = await h.turn(session, turn)
        assert state["status"] == "completed" and state["result"] == 1
        following = (await h.enqueue(session))["id"]
        await process.began(following)
        process.settle(following)
        assert (await h.turn(session, following))["status"] == "completed"
        assert "turn.output" not in await h.kinds(session)


@pytest.mark.parametrize(("lost", "code"), [("worker_lost", "worker_lost"), ("computer_lost", "process_lost")])
async def test_a_control_plane_that_dies_between_losing_a_computer_and_its_processes_leaves_no_turn_running(database, tmp_path, lost, code):
    """[S14], I8: these are commits of their own; the host may never come back to tell."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        h.host.disconnect()
        async with h.database.connection() as connection:
            worker = await connection.fetchval("UPDATE workers SET lease_until = clock_timestamp() - interval '31 s' RETURNING id")

        def die() -> None:
            raise RuntimeError("The control plane dies.")

        faults.arm(f"after_commit:{lost}", die)
        try:
            with pytest.raises(RuntimeError):
                if lost == "worker_lost":
                    await h.plane.processes.worker_lost(str(worker))
                else:
                    await h.plane.processes.computer_lost(process.computer, h.host.computers[process.computer]["fence"], "cold", None)
        finally:
            faults.disarm(f"after_commit:{lost}")
        assert (await h.turn(session, turn, 0))["status"] == "running"
        await LostWorkers(h.plane).run()
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and state["error"]["code"] == code


async def test_nothing_of_a_control_plane_goes_on_after_its_stop_though_the_database_is_away(database, tmp_path):
    """DESIGN I6, 9: what a process said and nobody could store is said again at the next attach; no task outlives its Service for it."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        tasks = asyncio.all_tasks()
        with away_at("before_commit:messages.open") as passes:
            process.say("messages.open", turn=turn)
            await until(lambda: passes)
            waiting = [task for task in asyncio.all_tasks() - tasks if not task.done()]
            assert waiting, "nothing waits for the database"
            await h.plane.stop()
            assert [task for task in waiting if not task.done()] == []
        successor = ControlPlane(h.database, FolderStore(tmp_path / "blobs"), PlaneConfig())
        await successor.start()
        h.plane = h.host.plane = successor
        h.host.connect()
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"
