"""What a process says last, and that it ended, is stored whatever comes between. SPEC [S10], [S14]; DESIGN I4, I6."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.service.races.forcing import away_at, until
from tests.service.races.planes import take_over
from tests.service.scripted import house

from helmr.control.service import faults
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.protocol.errors import DatabaseUnavailable
from helmr.protocol.link import control

pytestmark = pytest.mark.anyio


async def running(h):
    """A Session, its process, and the Turn that runs in it."""
    made = await h.create()
    process = await h.host.next_process()
    await process.heard("turn.start")
    return made["session"]["id"], process, made["turn"]["id"]


@contextmanager
def lost_once(point: str) -> Iterator[list[DatabaseUnavailable]]:
    """The database's reply is lost at the first pass of a fault point, which empties the list."""
    left = [DatabaseUnavailable("The reply was lost.")]

    def lose() -> None:
        if left:
            raise left.pop()

    faults.arm(point, lose)
    try:
        yield left
    finally:
        faults.disarm(point)


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
        with lost_once(point) as left:
            process.die("killed", signal=9)
            state = await h.turn(session, turn)
        assert not left and state["status"] == "interrupted" and state["error"]["code"] == "process_lost"
        assert [kind for kind in await h.kinds(session) if kind == "session.process_failed"] == ["session.process_failed"]


LAST = {
    # what a process says that is followed by a transaction of its own: that one's fault point, and what it tells
    "init.failed": ("process_ended", "session.process_failed"),
    "turn.undrained": ("force_stop", "turn.interrupted"),
}


async def said_last(h, kind):
    """A Session whose process comes to say `kind`, and how it says it."""
    h.host.auto_init = kind != "init.failed"
    made = await h.create()
    process, session, turn = await h.host.next_process(), made["session"]["id"], made["turn"]["id"]
    if kind == "init.failed":
        return session, lambda: process.say(kind, error={"code": "init_failed", "message": "no"})
    await process.heard("turn.start")
    await h.plane.turns.interrupt(h.principal, session, turn, None)
    await process.heard("turn.stop")
    return session, lambda: process.say(kind, turn=turn, detail="a callback raised")


@pytest.mark.parametrize("kind", LAST)
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
async def test_what_follows_from_what_a_process_said_is_done_although_the_reply_was_lost(database, tmp_path, kind, when):
    """[S13], [S14], I6: its number alone, stored before what follows, would make the second attempt find that it was heard."""
    async with house(database, tmp_path) as h:
        session, say = await said_last(h, kind)
        with lost_once(f"{when}:{kind}") as left:
            say()
            await h.until(session, LAST[kind][1])
        assert not left
        assert (await h.kinds(session)).count(LAST[kind][1]) == 1


@pytest.mark.parametrize("kind", LAST)
async def test_what_follows_from_what_a_process_said_is_done_by_the_next_control_plane(database, tmp_path, kind):
    """[S13], [S14], I5, I6: the first one dies before it does; the process says it again, since nobody acknowledged it."""
    async with house(database, tmp_path) as h:
        try:
            session, say = await said_last(h, kind)
            with away_at(f"before_commit:{LAST[kind][0]}") as passes:
                say()
                await until(lambda: passes)
                h.host.disconnect()
                await h.plane.stop()
            await take_over(h, tmp_path)
            await h.until(session, LAST[kind][1])
            assert (await h.kinds(session)).count(LAST[kind][1]) == 1
        finally:
            await h.plane.stop()


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
        try:
            await take_over(h, tmp_path)
            process.settle(turn)
            assert (await h.turn(session, turn))["status"] == "completed"
        finally:
            await h.plane.stop()


async def test_a_computer_that_could_not_be_attached_is_tried_again(database, tmp_path):
    """I6, I8: a supervisor that was silent when it was asked for its stream; its Turn goes on, and its Computer stays leased."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        attach, refused = h.host._computer_attach, []

        def silent(said):
            refused.append(said["slot"])
            error = {"code": "supervisor_silent", "message": "It did not connect."}
            h.host.link.send(control("computer.state", computer=said["computer"], fence=said["fence"], state="failed", error=error))

        h.host._computer_attach = silent
        h.host.disconnect()
        h.host.connect()
        for tries in (1, 2):
            async with asyncio.timeout(5):
                while len(refused) < tries:
                    h.plane.links.poke()
                    await asyncio.sleep(0.005)  # the link's other end gives this test no event
        h.host._computer_attach = attach
        process.settle(turn, result="after all")
        async with asyncio.timeout(5):
            while not h.host.slots:
                h.plane.links.poke()
                await asyncio.sleep(0.005)
        assert (await h.turn(session, turn))["result"] == "after all"
