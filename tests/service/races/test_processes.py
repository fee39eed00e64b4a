"""The life of a process against what ends it: starts, exits, re-attachments, overdue times. [S9], [S13], [S14], [S18], [S19], I4, I5."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.effort import often
from tests.service.races.forcing import away_at, quiet, referee, told_once, until
from tests.service.races.planes import duties
from tests.service.races.staging import TEXT, Stage, process_of, stage, starting
from tests.service.scripted import house
from tests.service.trees import as_session

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("order", ["init first", "end first"])
@pytest.mark.parametrize("how", ["cancel", "close while held", "interrupt"])
async def test_the_end_of_init_against_a_control_starts_the_turn_or_never_tells_it(database, tmp_path, how, order):
    """[S9], [S16], [S18], [S19]: a Turn runs only after `init`, and never after the control that forbids it."""
    async with house(database, tmp_path) as h, referee(h) as r:
        h.host.auto_init = False
        for _ in range(often(5)):
            s = await starting(h)
            if how == "close while held":
                await s.interrupt_session()
            control = {"cancel": s.cancel, "close while held": s.close, "interrupt": s.interrupt_session}[how]

            def init(s: Stage = s) -> None:
                s.process.say("init.done")

            async with r.queue(s.session) as q:
                await q.first(init if order == "init first" else control)
                two = await q.then(control if order == "init first" else init)
            await quiet(h.plane)
            assert two.code == "ok"
            kinds = await h.kinds(s.session)
            status = (await h.turn(s.session, s.turn, 0))["status"]
            if "turn.running" in kinds:  # the claim that follows `init` came between
                assert order == "init first" and how != "close while held"
                assert status == ("running" if how == "interrupt" else "cancelled")
                assert ("turn.stopping" in kinds) == (how == "interrupt")
            else:
                assert status == ("queued" if how == "interrupt" else "cancelled")
                assert s.turn not in s.process.started
            assert ("session.process_started" in kinds) == (order == "init first" or how == "interrupt")
            if how != "interrupt":
                assert (await s.process.heard("session.end"))["reason"] == ("cancelled" if how == "cancel" else "shutdown")


@pytest.mark.parametrize("order", ["failure first", "end first"])
@pytest.mark.parametrize("strikes", [0, 2])
@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_a_failing_init_against_an_end_tries_again_or_holds_and_a_held_queue_is_cancelled(database, tmp_path, how, strikes, order):
    """[S14], [S18]: the third strike of a closing Session holds it, so what it blocks is cancelled and the Session closes."""
    async with house(database, tmp_path) as h, referee(h) as r:
        h.host.auto_init = False
        for _ in range(often(4)):
            s = await starting(h)
            async with h.database.connection() as connection:
                await connection.execute("UPDATE sessions SET strikes = $2, attempt = $2 + 1 WHERE id = $1", s.session, strikes)

            def fail(s: Stage = s) -> None:
                s.process.say("init.failed", error={"code": "init_failed", "message": "no"})

            end = s.close if how == "close" else s.cancel
            async with r.queue(s.session) as q:
                await q.first(fail if order == "failure first" else end)
                await q.then(end if order == "failure first" else fail)
            await quiet(h.plane)
            await duties(h.plane)
            session, kinds = await h.session(s.session), await h.kinds(s.session)
            turn = (await h.turn(s.session, s.turn, 0))["status"]
            if how == "cancel" or strikes == 2:
                assert (session["status"], turn, session["holds"]) == ("closed", "cancelled", [])
            else:
                assert (session["status"], turn) == ("closing", "queued"), "it drains: another process is tried"
            held = kinds.count("session.held")
            assert held == (strikes == 2) if how == "close" else held <= (strikes == 2 and order == "failure first")


@pytest.mark.parametrize("order", ["init first", "time first"])
async def test_an_init_that_ends_as_its_time_runs_out_runs_or_is_tried_again_never_both(database, tmp_path, order):
    """[S9]: overdue is judged under the lock. Its process was killed although `init` had just ended."""
    async with house(database, tmp_path) as h, referee(h) as r:
        h.host.auto_init = False
        for _ in range(often(6)):
            s = await starting(h)
            async with h.database.connection() as connection:
                await connection.execute("UPDATE sessions SET init_deadline_at = now() WHERE id = $1", s.session)

            def init(s: Stage = s) -> None:
                s.process.say("init.done")

            def overdue(s: Stage = s) -> Any:
                return h.plane.dispatcher.telling.init_overdue(s.session)

            async with r.queue(s.session) as q:
                await q.first(init if order == "init first" else overdue)
                await q.then(overdue if order == "init first" else init)
            await quiet(h.plane)
            kinds = await h.kinds(s.session)
            if order == "init first":
                await s.process.began(s.turn)
                assert s.process.alive and "session.process_failed" not in kinds
            else:
                assert not s.process.alive and "turn.running" not in kinds
                assert (await h.turn(s.session, s.turn, 0))["status"] == "queued"


async def test_a_cleanup_time_that_runs_out_as_its_turn_settles_spares_the_next_turn(database, tmp_path):
    """[S13]: it was the next Turn that was stopped by force, when that had just been marked too."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(6)):
            s = await stage(h, loose=False)
            await s.interrupt_turn()
            guest = h.plane.dispatcher.roster.guest_of(s.session)
            async with r.queue(s.session) as q:
                await q.first(s.stop)
                # The time of the first Turn is over: this waits behind its settlement, and behind the mark of the second.
                following = Stage(h=h, plane=h.plane, session=s.session, process=s.process, turn=s.queued, queued="")

                async def mark_then_force(following: Stage = following, first: str = s.turn) -> None:
                    await following.interrupt_turn()
                    await h.plane.dispatcher.telling.force_stop(following.session, first)

                await q.then(mark_then_force)
            await quiet(h.plane)
            assert guest is h.plane.dispatcher.roster.guest_of(s.session) and s.process.alive
            assert (await h.turn(s.session, s.queued, 0))["status"] == "running"
            assert (await h.session(s.session))["holds"] == []
            await following.stop()
            assert (await h.turn(s.session, s.queued))["status"] == "interrupted"


@pytest.mark.parametrize("order", ["settlement first", "force first"])
async def test_a_settlement_against_the_end_of_its_cleanup_time(database, tmp_path, order):
    """[S11], [S13]: the marked status either way; only the force kills and holds."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(6)):
            s = await stage(h, loose=False)
            await s.interrupt_turn()

            def force(s: Stage = s) -> Any:
                return h.plane.dispatcher.telling.force_stop(s.session, s.turn)

            async with r.queue(s.session) as q:
                await q.first(s.stop if order == "settlement first" else force)
                await q.then(force if order == "settlement first" else s.stop)
            await quiet(h.plane)
            forced = order == "force first"
            assert (await h.turn(s.session, s.turn, 0))["status"] == "interrupted"
            assert [hold["kind"] for hold in (await h.session(s.session))["holds"]] == ["process_failed"] * forced
            assert s.process.alive != forced
            assert (await h.turn(s.session, s.queued, 0))["status"] == ("queued" if forced else "running")


@pytest.mark.parametrize("said", ["output", "settlement", "question", "message"])
async def test_what_is_on_its_way_to_the_database_when_the_link_breaks_is_stored_once(database, tmp_path, said):
    """[E5], I4, I5: the guest repeats it on the new link while the first waits for the lock; both are one operation."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(5)):
            s = await stage(h, loose=said == "message")
            process = s.process
            say = {
                "output": lambda p=process, s=s: p.output(s.turn, "once"),
                "settlement": lambda p=process, s=s: p.settle(s.turn, result=1),
                "question": lambda p=process, s=s: p.say("question.ask", turn=s.turn, question={"prompt": [], "answer": {"type": "text"}}),
                "message": lambda p=process, s=s: p.say("message.delivered", turn=s.turn, id=s.started),
            }[said]
            async with r.queue(s.session) as q:
                first = await q.first(say)
                old = h.plane.dispatcher.roster.guest_of(s.session)
                h.host.disconnect()
                h.host.connect()
                await until(lambda s=s, old=old: h.plane.dispatcher.roster.guest_of(s.session) not in (None, old))
            await process.acknowledged(first.value)
            await quiet(h.plane)
            event = {"output": "turn.output", "settlement": "turn.completed", "question": "question.asked", "message": "message.delivered"}[
                said
            ]
            assert (await h.kinds(s.session)).count(event) == 1
            if said == "settlement":
                await process.began(s.queued)
                assert (await h.kinds(s.session)).count("turn.running") == 2
        assert told_once(h)


async def test_an_exit_that_is_reported_twice_strikes_once(database, tmp_path):
    """[S14]: on the old link and on the new one, while the first report waits for the lock."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(5)):
            s = await stage(h)
            async with r.queue(s.session) as q:
                await q.first(lambda s=s: s.process.die("killed", signal=9))
                h.host.disconnect()
                h.host.connect()
                await r.standing(2)
            await quiet(h.plane)
            kinds = await h.kinds(s.session)
            assert (kinds.count("session.process_failed"), kinds.count("turn.interrupted")) == (1, 1)
            async with h.database.connection() as connection:
                assert await connection.fetchval("SELECT strikes FROM sessions WHERE id = $1", s.session) == 1


@pytest.mark.ud("UD-19")
async def test_an_exit_reported_while_the_database_is_away_is_stored_when_it_is_back(database, tmp_path):
    """I6: it was forgotten, and the Turn ran on in a process that was gone."""
    async with house(database, tmp_path) as h:
        s = await stage(h)
        with away_at("before_commit:process_ended") as passes:
            s.process.die("killed", signal=9)
            await until(lambda: len(passes) == 2)
        state = await h.turn(s.session, s.turn)
        assert (state["status"], state["error"]["code"]) == ("interrupted", "process_lost")


@pytest.mark.parametrize("order", ["spawn first", "end first"])
@pytest.mark.parametrize("how", ["close", "cancel", "interrupt"])
async def test_a_spawn_against_the_end_of_its_tree_is_refused_or_included(database, tmp_path, how, order):
    """[S16], [S18], [S19], [M4]: from above the parent, whose row the control locks together with the whole tree."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(5)):
            top = await stage(h, loose=False, queued=False)
            made = await h.plane.sessions.spawn(as_session(h, top.session), agent="talker", input=TEXT)
            parent, turn = (json.loads(made.body)[noun]["id"] for noun in ("session", "turn"))
            s = Stage(h=h, plane=h.plane, session=parent, process=await process_of(h, parent), turn=turn, queued="")
            await s.process.began(turn)
            await quiet(h.plane)
            control = {"close": top.close, "cancel": top.cancel, "interrupt": top.interrupt_session}[how]
            async with r.queue(parent) as q:
                spawn = await q.first(s.spawn) if order == "spawn first" else None
                await (q.then if spawn else q.first)(control)
                spawn = spawn or await q.then(s.spawn)
            await quiet(h.plane)
            if order == "end first" and how != "interrupt":
                assert spawn.code == "session_not_open"
                continue
            child = json.loads(spawn.value.body)["session"]["id"]
            session = await h.session(child)
            if how == "interrupt":
                assert [hold["kind"] for hold in session["holds"]] == ["interrupt"]
                kinds = await h.kinds(child)
                assert ("turn.running" in kinds) == ("turn.stopping" in kinds), "it may have begun between the two"
            else:
                assert session["status"] == ("closed" if how == "cancel" else "closing")
            assert session["parent_session_id"] == parent
