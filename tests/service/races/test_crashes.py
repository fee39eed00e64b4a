"""A control plane that dies at a commit: before it nothing has happened, after it everything has, and an exact retry says so. [S4], I5, I6.

What the dead one would have done next is lost; its successor does it, from the rows and its duties alone.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.effort import often
from tests.service.races.forcing import away_at, quiet, told_once, until
from tests.service.races.planes import duties, take_over
from tests.service.races.staging import TEXT, Stage, idle, stage
from tests.service.scripted import agent, house

from helmr.control.upkeep.idle_close import IdleClose
from helmr.protocol.errors import DatabaseUnavailable
from helmr.protocol.link import control

pytestmark = pytest.mark.anyio

Write = Callable[[Stage, str], Awaitable[Any]]
WRITES: dict[str, tuple[Write, str]] = {
    # by the name of its fault points: the write, and the event that it makes once
    "flush.admit": (lambda s, key: s.enqueue(key), "turn.queued"),
    "send": (lambda s, key: s.send(key), "message.admitted"),
    "interrupt_turn": (lambda s, key: s.interrupt_turn(key), "turn.stopping"),
    "interrupt_session": (lambda s, key: s.interrupt_session(key), "session.interrupt"),
    "resume": (lambda s, key: s.resume(key), "session.resume"),
    "close": (lambda s, key: s.close(key), "session.close"),
    "cancel": (lambda s, key: s.cancel(key), "session.cancel"),
    "respond": (lambda s, key: s.answer(key), "question.responded"),
}


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("name", WRITES)
async def test_a_write_whose_control_plane_died_is_retried_with_one_effect_and_one_receipt(database, tmp_path, name, point):
    """[S4], STYLE 18."""
    write, event = WRITES[name]
    async with house(database, tmp_path) as h:
        try:
            for n in range(often(2, soak=40)):
                s = await stage(h, held=name == "resume", loose=name == "respond")
                before = (await h.kinds(s.session)).count(event)
                with away_at(f"{point}:{name}"), pytest.raises(DatabaseUnavailable):
                    await write(s, f"key {n}")
                s.plane = await take_over(h, tmp_path)
                replies = [await write(s, f"key {n}") for _ in range(2)]
                await quiet(h.plane)
                assert replies[0].body == replies[1].body
                assert [reply.replayed for reply in replies] == [point == "after_commit", True]
                assert (await h.kinds(s.session)).count(event) == before + 1
                await _goes_on(s, name)
            assert told_once(h)
        finally:
            await h.plane.stop()


async def _goes_on(s: Stage, name: str) -> None:
    """What should follow does, though who wrote it died before it said so."""
    h = s.h
    if name == "cancel":
        await s.process.heard("session.end")
        return
    if name in ("interrupt_turn", "interrupt_session"):
        await s.process.heard("turn.stop")
    if name == "send":
        await s.process.heard("message")
    if name == "respond":
        await s.process.heard("question.answer")
    s.process.settle(s.turn, "stopped" if name.startswith("interrupt") else "completed")
    await duties(h.plane)
    if name != "interrupt_session":
        await s.process.began(s.queued)


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_a_creation_whose_control_plane_died_is_retried_as_one_session(database, tmp_path, point):
    """[S2], [S4]: its Turn runs once."""
    async with house(database, tmp_path) as h:
        try:
            for n in range(often(2, soak=40)):
                options: dict[str, Any] = {"agent": "talker", "key": f"s {n}", "input": TEXT, "idempotency_key": f"key {n}"}
                with away_at(f"{point}:create"), pytest.raises(DatabaseUnavailable):
                    await h.plane.sessions.create(h.principal, **options)
                plane = await take_over(h, tmp_path)
                await duties(plane)
                replies = [await plane.sessions.create(h.principal, **options) for _ in range(2)]
                assert replies[0].body == replies[1].body
                assert [reply.replayed for reply in replies] == [point == "after_commit", True]
                made = json.loads(replies[0].body)
                await quiet(plane)
                process = next(p for p in h.host.processes.values() if p.session_id == made["session"]["id"])
                await process.began(made["turn"]["id"])
                assert (await h.kinds(made["session"]["id"])).count("turn.running") == 1
            assert told_once(h)
        finally:
            await h.plane.stop()


SAID: dict[str, tuple[Callable[[Stage], Any], str]] = {
    "flush.append": (lambda s: s.process.output(s.turn, "an output"), "turn.output"),
    "flush.settle": (lambda s: s.process.settle(s.turn, result=1), "turn.completed"),
    "tie_up": (lambda s: s.process.settle(s.turn, result=1), "turn.completed"),
    "message.started": (lambda s: s.process.say("message.started", turn=s.turn, id=s.admitted), "message.started"),
    "message.delivered": (lambda s: s.process.say("message.delivered", turn=s.turn, id=s.started), "message.delivered"),
    "question.ask": (
        lambda s: s.process.say("question.ask", turn=s.turn, question={"prompt": TEXT, "answer": {"type": "text"}}),
        "question.asked",
    ),
    "question.withdraw": (lambda s: s.process.say("question.withdraw", turn=s.turn, ask=s.ask), "question.cancelled"),
    "turn.stopping": (lambda s: s.process.say("turn.stopping", turn=s.turn, cause="handler_failed"), "turn.stopping"),
    "process_ended": (lambda s: s.process.die("killed", signal=9), "session.process_failed"),
}


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("name", SAID)
async def test_what_a_process_said_to_a_control_plane_that_died_is_stored_once(database, tmp_path, name, point):
    """[E5], I5, I6: the guest repeats what was not acknowledged, its worker what was not forgotten. The dead one may not be quite dead: it
    goes on with what it had begun."""
    say, event = SAID[name]
    async with house(database, tmp_path) as h:
        try:
            for _ in range(often(2, soak=40)):
                s = await stage(h, loose=name != "flush.settle")
                before = (await h.kinds(s.session)).count(event)
                with away_at(f"{point}:{name}") as passes:
                    say(s)
                    await until(lambda passes=passes: passes)
                    h.host.disconnect()
                    await h.plane.stop()
                await take_over(h, tmp_path)
                op = s.process.output(s.turn, "the next") if s.process.alive else None
                if op is not None:
                    await s.process.acknowledged(op)
                await duties(h.plane)
                await h.until(s.session, event, before + 1)
                kinds = await h.kinds(s.session)
                assert kinds.count(event) == before + 1 + (event == "turn.output")
                assert kinds.count("turn.completed") <= 1
            assert told_once(h)
        finally:
            await h.plane.stop()


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("name", ["place", "computer_running", "init.done", "flush.claim"])
async def test_a_start_that_was_cut_off_at_any_commit_is_finished_and_its_turn_runs_once(database, tmp_path, name, point):
    """[S9], I5, I6."""
    async with house(database, tmp_path) as h:
        try:
            with away_at(f"{point}:{name}") as passes:
                made = await h.create()
                await until(lambda passes=passes: passes)
                h.host.disconnect()
                await h.plane.stop()
            await take_over(h, tmp_path)
            await duties(h.plane)
            await h.until(made["session"]["id"], "turn.running")
            [process] = [p for p in h.host.processes.values() if p.session_id == made["session"]["id"]]
            await process.began(made["turn"]["id"])
            process.settle(made["turn"]["id"])
            assert (await h.turn(made["session"]["id"], made["turn"]["id"]))["status"] == "completed"
            assert told_once(h)
        finally:
            await h.plane.stop()


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("name", ["deadline", "finish_close", "close_idle", "force_stop"])
async def test_a_duty_that_was_cut_off_at_its_commit_is_done_once_by_the_next_round(database, tmp_path, name, point):
    """[S12], [S13], [S18], [S21], I6."""
    async with house(database, tmp_path, agent("talker", max_turn_duration_ms=3_600_000, close_after_idle_ms=60_000)) as h:
        try:
            s = await (idle(h) if name == "close_idle" else stage(h, overdue=name == "deadline"))
            async with h.database.connection() as connection:
                if name == "close_idle":
                    await connection.execute("UPDATE sessions SET idle_at = now() - interval '2 minutes'")
                if name == "force_stop":
                    await s.interrupt_turn()
                    await connection.execute("UPDATE sessions SET stop_at = now() - interval '1 minute'")
            if name == "finish_close":
                await s.close()
            with away_at(f"{point}:{name}") as passes:
                if name == "finish_close":
                    await s.complete()
                    await s.process.began(s.queued)
                    s.process.settle(s.queued)
                    await until(lambda passes=passes: passes)
                else:
                    with pytest.raises(DatabaseUnavailable):
                        await (IdleClose(h.plane).run() if name == "close_idle" else duties(h.plane))
            await take_over(h, tmp_path)
            await duties(h.plane)
            await IdleClose(h.plane).run()
            event = {"deadline": "turn.stopping", "force_stop": "turn.interrupted"}.get(name, "session.closed")
            assert (await h.kinds(s.session)).count(event) == 1
            assert (await h.kinds(s.session)).count("session.held") == (name == "force_stop")
        finally:
            await h.plane.stop()


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_a_lost_computer_whose_control_plane_died_leaves_no_turn_running(database, tmp_path, point):
    """[S14], I6: the Computer was marked, and the ends of its processes were still to come."""
    async with house(database, tmp_path) as h:
        try:
            s = await stage(h)
            with away_at(f"{point}:computer_lost") as passes:
                computer = s.process.computer
                fence = h.host.computers.pop(computer)["fence"]
                s.process.alive = False
                h.host.link.send(control("computer.state", computer=computer, fence=fence, state="stopped"))
                await until(lambda: passes)
                h.host.disconnect()
                await h.plane.stop()
            await take_over(h, tmp_path)
            await duties(h.plane)
            state = await h.turn(s.session, s.turn, 0)
            assert (state["status"], state["error"]["code"]) == ("interrupted", "process_lost")
        finally:
            await h.plane.stop()
