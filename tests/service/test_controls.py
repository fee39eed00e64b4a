"""Interrupt, resume, close, cancel, and what the loss of a process does. SPEC [S11]-[S20]."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.service.scripted import house

from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.protocol.errors import HoldNotFound, MessageClosed, SessionNotOpen, TurnNotRunning, TurnStopping
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def running(h):
    """A warm Session with a running Turn."""
    session, process = await h.warm()
    turn = (await h.enqueue(session))["id"]
    await process.heard("turn.start", 2)
    return session, process, turn


async def pass_deadline(h):
    """The running Turn's deadline is over, and the duty finds it."""
    from helmr.control.upkeep.deadlines import Deadlines

    async with h.database.connection() as connection:
        await connection.execute("UPDATE sessions SET deadline_at = now() WHERE deadline_at IS NOT NULL")
    await Deadlines(h.plane).run()


async def control(h, name, session, *args):
    return json.loads((await getattr(h.plane.controls, name)(h.principal, session, *args, None)).body)


async def test_a_turn_interrupt_marks_the_turn_and_the_next_one_runs_after_the_handler_stopped(database, tmp_path):
    """[S11], [S15]: no hold; the terminal status is the mark's whatever the guest says."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        following = (await h.enqueue(session, "next"))["id"]
        await h.plane.turns.interrupt(h.principal, session, turn, None)
        stop = await process.heard("turn.stop")
        assert stop["turn"] == turn and stop["reason"] == "turn_interrupted" and 0 < stop["seconds"] <= 10
        with pytest.raises(TurnStopping):
            await h.plane.turns.interrupt(h.principal, session, turn, None)
        assert (await h.turn(session, turn, 0))["status"] == "running"
        process.output(turn, "draining")
        process.settle(turn, "completed", result="too late", response=[])
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and "result" not in state and "response" not in state
        await process.began(following)
        assert (await h.session(session))["holds"] == []
        kinds = await h.kinds(session)
        assert kinds[-4:] == ["turn.stopping", "turn.output", "turn.interrupted", "turn.running"]


async def test_only_a_running_turn_can_be_interrupted(database, tmp_path):
    """[S15]."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        queued = (await h.enqueue(session))["id"]
        with pytest.raises(TurnNotRunning):
            await h.plane.turns.interrupt(h.principal, session, queued, None)
        process.settle(turn)
        await h.turn(session, turn)
        with pytest.raises(TurnNotRunning):
            await h.plane.turns.interrupt(h.principal, session, turn, None)


@pytest.mark.ud("UD-23")
async def test_a_session_interrupt_holds_and_each_hold_must_be_resumed(database, tmp_path):
    """[S16], [S17], UD-23: resume releases exactly the named hold; the interrupted Turn is not replayed."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        first = await control(h, "interrupt", session)
        second = await control(h, "interrupt", session)
        await process.heard("turn.stop")
        process.settle(turn, "stopped")
        assert (await h.turn(session, turn))["status"] == "interrupted"
        waiting = (await h.enqueue(session, "held"))["id"]
        assert {hold["id"] for hold in (await h.session(session))["holds"]} == {first["hold_id"], second["hold_id"]}
        with pytest.raises(HoldNotFound):
            await control(h, "resume", session, new_id())
        await control(h, "resume", session, first["hold_id"])
        assert [hold["id"] for hold in (await h.session(session))["holds"]] == [second["hold_id"]]
        assert (await h.turn(session, waiting, 0))["status"] == "queued"
        with pytest.raises(HoldNotFound):
            await control(h, "resume", session, first["hold_id"])
        await control(h, "resume", session, second["hold_id"])
        await process.began(waiting)
        assert process.started.count(turn) == 1


async def test_close_lets_the_queue_drain_then_closes_and_ends_the_process(database, tmp_path):
    """[S18], [E4]."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        queued = (await h.enqueue(session))["id"]
        assert (await control(h, "close", session))["status"] == "closing"
        with pytest.raises(SessionNotOpen):
            await h.enqueue(session)
        process.settle(turn)
        await process.heard("turn.start", 3)
        process.settle(queued)
        await h.until(session, "session.closed")
        assert (await h.turn(session, queued))["status"] == "completed"
        await process.heard("session.end")
        process.die("exited", code=0)
        await h.until(session, "session.process_stopped")
        page = json.loads(await h.plane.events.page(h.principal, session, 0, 1000))
        assert page["sealed"] is True
        again = await control(h, "close", session)
        assert again["status"] == "closed"


async def test_close_cancels_what_a_hold_blocks(database, tmp_path):
    """[S18], [S20]: a closed Session has no holds."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        await control(h, "interrupt", session)
        queued = (await h.enqueue(session))["id"]
        assert (await control(h, "close", session))["status"] == "closed"
        assert (await h.turn(session, queued))["status"] == "cancelled"
        closed = await h.session(session)
        assert closed["holds"] == [] and closed["close_reason"] == "close"
        kinds = await h.kinds(session)
        assert kinds.index("turn.cancelled") < kinds.index("session.closed")
        await process.heard("session.end")


@pytest.mark.ud("UD-11")
async def test_cancel_settles_everything_at_once_and_what_the_process_says_later_changes_nothing(database, tmp_path):
    """[S11], [S19], UD-11."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        queued = (await h.enqueue(session))["id"]
        assert (await control(h, "cancel", session))["status"] == "closed"
        states = [(await h.turn(session, t, 0))["status"] for t in (turn, queued)]
        assert states == ["cancelled", "cancelled"]
        before = await h.kinds(session)
        op = process.output(turn, "late")
        op = process.settle(turn, "completed", result=1)
        await process.acknowledged(op)
        assert await h.kinds(session) == before
        end = await process.heard("session.end")
        assert end["reason"] == "cancelled"


@pytest.mark.ud("UD-27")
async def test_a_process_that_overstays_its_end_is_killed(database, tmp_path):
    """[S19], UD-27: gone within the cleanup period."""
    async with house(database, tmp_path) as h:
        session, process, _ = await running(h)
        async with h.database.connection() as connection:
            await control(h, "cancel", session)
            await connection.execute("UPDATE sessions SET end_deadline_at = now() WHERE id = $1", session)
        from helmr.control.upkeep.overdue import Overdue

        await Overdue(h.plane).run()
        await h.host.told("session.kill")
        assert not process.alive


async def test_a_lost_process_interrupts_its_turn_and_a_new_one_serves_the_next(database, tmp_path):
    """[S14]: never replayed; recovery says reconstructed."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        following = (await h.enqueue(session))["id"]
        process.output(turn, "last words")
        process.die("killed", signal=9)
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and state["error"]["code"] == "process_lost"
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET retry_at = now() WHERE id = $1", session)
        h.plane.dispatcher.place(session)
        second = await h.host.next_process()
        assert second.channel != process.channel
        assert second.opened["recovery"] == {"kind": "reconstructed", "reason": "process_lost"}
        await second.began(following)
        kinds = await h.kinds(session)
        assert kinds.index("turn.output") < kinds.index("turn.interrupted")


@pytest.mark.ud("UD-21")
async def test_an_out_of_memory_death_says_so(database, tmp_path):
    """[S14], UD-21."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        process.die("out_of_memory", limit=1 << 30, peak=(1 << 30) + 5)
        error = (await h.turn(session, turn))["error"]
        assert error["code"] == "out_of_memory" and error["details"]["limit"] == 1 << 30


async def test_three_failed_starts_hold_the_session_until_a_person_resumes_it(database, tmp_path):
    """[S14]: back-off, then hold process_failed; resume tries again."""
    async with house(database, tmp_path) as h:
        h.host.auto_init = False
        made = await h.create()
        session, turn = made["session"]["id"], made["turn"]["id"]
        for attempt in range(3):
            process = await h.host.next_process()
            process.say("init.failed", error={"code": "init_failed", "message": f"no {attempt}"})
            await h.until(session, "session.process_failed", attempt + 1)
            async with h.database.connection() as connection:
                await connection.execute("UPDATE sessions SET retry_at = now() WHERE id = $1", session)
            h.plane.dispatcher.place(session)
        hold = (await h.until(session, "session.held"))["data"]
        assert hold["kind"] == "process_failed"
        assert (await h.turn(session, turn, 0))["status"] == "queued"
        explained = await h.plane.explanations.explain(h.principal, session)
        assert explained.state == "held"
        h.host.auto_init = True
        await control(h, "resume", session, hold["hold_id"])
        process = await h.host.next_process()
        await process.heard("turn.start")
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"


async def test_a_resume_after_three_losses_begins_to_count_anew(database, tmp_path):
    """[S14], [S17]: three more before it is held again; a resume that forgave nothing would be undone by the very next loss."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turns = [(await h.enqueue(session))["id"] for _ in range(6)]
        for number, turn in enumerate(turns, 1):
            await process.began(turn)
            process.die("killed", signal=9)
            assert (await h.turn(session, turn))["status"] == "interrupted"
            holds = (await h.session(session))["holds"]
            assert [hold["kind"] for hold in holds] == (["process_failed"] if number % 3 == 0 else [])
            if number == 6:
                break
            async with h.database.connection() as connection:
                await connection.execute("UPDATE sessions SET retry_at = now() WHERE id = $1", session)
            if holds:
                await control(h, "resume", session, holds[0]["id"])
            h.plane.dispatcher.place(session)
            process = await h.host.next_process()


@pytest.mark.ud("UD-30")
async def test_a_cleanup_that_fails_settles_by_the_mark_kills_the_tree_and_demands_recovery(database, tmp_path):
    """[S13]."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        await h.plane.turns.interrupt(h.principal, session, turn, None)
        await process.heard("turn.stop")
        process.say("turn.undrained", turn=turn, detail="a callback raised")
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted"
        await h.until(session, "session.held")
        assert [hold["kind"] for hold in (await h.session(session))["holds"]] == ["process_failed"]
        await h.host.told("session.kill")
        assert not process.alive


async def test_a_close_gives_a_process_whose_cleanup_failed_no_more_time(database, tmp_path):
    """[S13]: the order to kill it was lost with the link, and its Session closed before that was back. It had ten more seconds."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        await h.plane.turns.interrupt(h.principal, session, turn, None)
        await process.heard("turn.stop")
        h.host.disconnect()
        await h.plane.dispatcher.telling.force_stop(session, turn)
        await control(h, "close", session)
        assert (await h.session(session))["status"] == "closed"
        assert process.alive
        h.host.connect()
        await process.heard("session.end")
        from helmr.control.upkeep.overdue import Overdue

        await Overdue(h.plane).run()
        await h.host.told("session.kill")
        assert not process.alive


async def test_a_handler_failure_is_marked_before_it_drains(database, tmp_path):
    """[S10], [S11]."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        process.say("turn.stopping", turn=turn, cause="handler_failed", error={"code": "handler_failed", "message": "boom"})
        process.settle(turn, "failed", error={"code": "handler_failed", "message": "boom"})
        state = await h.turn(session, turn)
        assert state["status"] == "failed" and state["error"] == {"code": "handler_failed", "message": "boom"}
        assert (await h.kinds(session))[-2:] == ["turn.stopping", "turn.failed"]
        follow = (await h.enqueue(session))["id"]
        await process.began(follow)


@pytest.mark.ud("UD-12")
async def test_a_deadline_fails_the_turn_without_a_hold(database, tmp_path):
    """[S12], UD-12."""
    from tests.service.scripted import agent

    async with house(database, tmp_path, agent("talker", max_turn_duration_ms=3_600_000)) as h:
        made = await h.create()
        process = await h.host.next_process()
        await process.heard("turn.start")
        await pass_deadline(h)
        assert (await process.heard("turn.stop"))["reason"] == "deadline"
        process.settle(made["turn"]["id"], "stopped")
        state = await h.turn(made["session"]["id"], made["turn"]["id"])
        assert state["status"] == "failed" and state["error"]["code"] == "deadline_exceeded"
        assert (await h.session(made["session"]["id"]))["holds"] == []


@pytest.mark.ud("UD-07")
@pytest.mark.ud("UD-06")
async def test_a_message_reaches_the_running_turn_that_takes_messages_and_no_other(database, tmp_path):
    """[S7], UD-06, UD-07. One still on its way when the Turn ends by itself is rejected as one that had arrived is [S10]."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        hello = [{"type": "text", "text": "hello"}]
        with pytest.raises(MessageClosed):
            await h.plane.turns.send(h.principal, session, turn, hello, None)
        op = process.say("messages.open", turn=turn)
        await process.acknowledged(op)
        receipt = json.loads((await h.plane.turns.send(h.principal, session, turn, hello, None)).body)
        said = await process.heard("message")
        assert said["id"] == receipt["id"] and said["content"] == hello
        process.say("message.started", id=said["id"])
        process.say("message.delivered", id=said["id"])
        second = json.loads((await h.plane.turns.send(h.principal, session, turn, hello, None)).body)
        await process.heard("message", 2)
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"
        events = await h.events(session)
        rejected = [e for e in events if e["kind"] == "message.rejected"]
        assert [e["data"]["message_id"] for e in rejected] == [second["id"]]
        assert (rejected[0]["data"]["reason"], rejected[0]["data"]["delivery"]) == ("turn_closed", "not_delivered")
        assert events[-1]["kind"] == "turn.completed", "everything of a Turn comes before its terminal event [E2]"
        with pytest.raises(MessageClosed):
            await h.plane.turns.send(h.principal, session, turn, hello, None)


async def test_a_process_that_breaks_the_protocol_is_ended_and_its_turn_settled(database, tmp_path):
    """I4: guests are hostile."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        process.say("turn.output", turn=turn, content=[{"type": "image", "url": "x"}])
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and state["error"]["code"] == "process_lost"
        assert not process.alive


async def test_a_computer_that_cannot_start_backs_off_and_says_why(database, tmp_path):
    """[S14], [S23]."""
    async with house(database, tmp_path) as h:
        h.host.refuse_computers = {"code": "image_failed", "message": "step 2 failed"}
        made = await h.create()
        failed = await h.until(made["session"]["id"], "session.process_failed")
        assert failed["data"]["cause"] == "image_failed" and "step 2" in failed["data"]["message"]
        explained = await h.plane.explanations.explain(h.principal, made["session"]["id"])
        assert explained.state in ("backing_off", "computer_failed")


async def test_without_room_a_turn_waits_and_explain_says_for_what(database, tmp_path):
    """[C10], [S23]."""
    async with house(database, tmp_path) as h:
        h.host.disconnect()
        h.host = type(h.host)(h.plane, name="tiny", cpu=0.5)
        h.host.connect()
        await h.host.told("welcome")
        async with h.database.connection() as connection:
            await connection.execute("DELETE FROM workers WHERE name <> 'tiny'")
        made = await h.create()
        await h.plane.processes.place(made["session"]["id"])
        explained = await h.plane.explanations.explain(h.principal, made["session"]["id"])
        assert explained.state == "waiting_for_capacity" and "1 CPU" in explained.sentence


@pytest.mark.ud("UD-02")
async def test_a_worker_silent_beyond_lease_and_grace_loses_its_turns(database, tmp_path):
    """[S14], I8: worker_lost, no strike; the returning guest is ended and the Session goes on with a new process."""
    async with house(database, tmp_path) as h:
        session, _process, turn = await running(h)
        h.host.disconnect()
        async with h.database.connection() as connection:
            worker = await connection.fetchval("UPDATE workers SET lease_until = now() - interval '31 s' RETURNING id")
        await h.plane.processes.worker_lost(str(worker))
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and state["error"]["code"] == "worker_lost"
        queued = (await h.enqueue(session))["id"]
        h.host.connect()
        stop = await h.host.told("computer.stop")
        assert stop["computer"] == (await h.session(session))["computer_id"]
        second = await h.host.next_process()
        await second.began(queued)
        assert second.opened["recovery"] == {"kind": "reconstructed", "reason": "worker_lost"}


@pytest.mark.ud("UD-02")
@pytest.mark.parametrize("back", [False, True], ids=["gone for good", "back in time"])
async def test_a_worker_whose_lease_was_deleted_has_its_time_and_then_loses_its_turns(database, tmp_path, monkeypatch, back):
    """[S14], I8: there is nothing that could run out, so a Turn would read `running` for ever; a worker that comes back keeps its Turns."""
    now = 0.0
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        queued = (await h.enqueue(session))["id"]
        h.host.disconnect()
        duty = LostWorkers(h.plane, clock=lambda: now)
        monkeypatch.setattr(h.plane, "serving_seconds", lambda: 1000.0)
        async with h.database.connection() as connection:
            await connection.execute("DELETE FROM workers")
        await duty.run()
        now = 89.9
        await duty.run()
        assert (await h.turn(session, turn, 0))["status"] == "running"
        if back:
            h.host.connect()
            async with asyncio.timeout(5):
                while not h.host.slots:
                    await asyncio.sleep(0)
            now = 1000.0
            await duty.run()
            process.settle(turn)
            assert (await h.turn(session, turn))["status"] == "completed"
            return
        now = 90.0
        await duty.run()
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and state["error"]["code"] == "worker_lost"
        assert (await h.plane.explanations.explain(h.principal, session)).state == "worker_away"
        h.host.connect()
        second = await h.host.next_process()
        await second.began(queued)
        assert second.opened["recovery"] == {"kind": "reconstructed", "reason": "worker_lost"}


async def test_an_idle_session_closes_by_itself_but_not_when_work_comes_first(database, tmp_path):
    """[S21]."""
    from tests.service.scripted import agent

    from helmr.control.upkeep.idle_close import IdleClose

    async with house(database, tmp_path, agent("talker", close_after_idle_ms=60_000)) as h:
        idle, busy = (await h.create(None))["session"]["id"], (await h.create(None))["session"]["id"]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET idle_at = now() - interval '2 minutes'")
        turn = (await h.enqueue(busy))["id"]
        await IdleClose(h.plane).run()
        assert (await h.session(idle))["close_reason"] == "idle"
        assert (await h.session(busy))["status"] == "open"
        process = await h.host.next_process()
        await process.heard("turn.start")
        process.settle(turn)
        assert (await h.turn(busy, turn))["status"] == "completed"


async def test_following_gives_every_event_once_whatever_comes_between(database, tmp_path):
    """[E1], [E4], UD-51, UD-52: pushed, read from the log, and over a follower that lagged."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)
        seen: list[int] = []

        async def follow():
            async for batch in h.plane.events.follow(h.principal, session, 0):
                for event in batch:
                    seen.append(event.sequence)
                if len(seen) % 7 == 0:
                    await asyncio.sleep(0)
                    h.plane.hub.touch(session)

        task = asyncio.create_task(follow())
        for n in range(3000):
            process.output(turn, "x" * 50 + str(n))
            if n % 50 == 0:
                await asyncio.sleep(0)
        process.settle(turn)
        await h.turn(session, turn)
        await control(h, "close", session)
        await process.heard("session.end")
        process.die("exited")
        async with asyncio.timeout(5):
            await task
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) > 3000


async def test_who_waits_is_told_the_marks_error_as_it_is_stored_and_not_the_guests(database, tmp_path):
    """[S11]: the answer of a wait equals a later read, also when the handler fails while it is being stopped."""
    from tests.service.scripted import agent

    async with house(database, tmp_path, agent("talker", max_turn_duration_ms=3_600_000)) as h:
        made = await h.create()
        session, turn = made["session"]["id"], made["turn"]["id"]
        process = await h.host.next_process()
        await process.heard("turn.start")
        waiting = asyncio.create_task(h.turn(session, turn))
        await pass_deadline(h)
        await process.heard("turn.stop")
        process.settle(turn, "failed", error={"code": "handler_failed", "message": "while stopping"})
        waited = await waiting
        h.plane.hub.touch(session)
        h.plane._core.recent.forget_session(session)
        assert waited == await h.turn(session, turn, 0)
        assert waited["error"] == {"code": "deadline_exceeded"}


async def test_only_a_turn_that_ended_by_itself_forgives_strikes(database, tmp_path):
    """[S14]: completed, or failed with its process drained; what was interrupted says nothing of the process."""
    async with house(database, tmp_path) as h:
        session, process, turn = await running(h)

        async def strikes() -> int:
            async with h.database.connection() as connection:
                return await connection.fetchval("SELECT strikes FROM sessions WHERE id = $1", session)

        process.die("killed", signal=9)
        await h.turn(session, turn)
        interrupted = (await h.enqueue(session))["id"]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET retry_at = now() WHERE id = $1", session)
        h.plane.dispatcher.place(session)
        process = await h.host.next_process()
        await process.began(interrupted)
        await h.plane.turns.interrupt(h.principal, session, interrupted, None)
        process.settle(interrupted, "stopped")
        assert (await h.turn(session, interrupted))["status"] == "interrupted"
        assert await strikes() == 1
        failed = (await h.enqueue(session))["id"]
        await process.began(failed)
        process.settle(failed, "failed", error={"code": "handler_failed"})
        assert (await h.turn(session, failed))["status"] == "failed"
        assert await strikes() == 0
