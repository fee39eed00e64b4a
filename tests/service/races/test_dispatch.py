"""Admission, holds, resumes and closes that meet: what starts a Turn against what forbids it. [S6], [S8], [S16]-[S21], DESIGN 7."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.effort import often
from tests.service.races.forcing import quiet, referee
from tests.service.races.planes import beside
from tests.service.races.staging import Stage, idle, place_hold
from tests.service.scripted import agent, house

from helmr.protocol.errors import HelmrError

pytestmark = pytest.mark.anyio

IDLE = agent("talker", close_after_idle_ms=60_000)


async def statuses(s: Stage) -> list[str]:
    async with s.h.database.connection() as connection:
        rows = await connection.fetch("SELECT status FROM turns WHERE session_id = $1 ORDER BY sequence", s.session)
    return [row["status"] for row in rows][1:]


async def over_its_period(s: Stage) -> None:
    async with s.h.database.connection() as connection:
        await connection.execute("UPDATE sessions SET idle_at = now() - interval '2 minutes' WHERE id = $1", s.session)


@pytest.mark.parametrize("order", ["enqueue first", "end first"])
@pytest.mark.parametrize("how", ["close", "cancel", "idle close"])
async def test_an_enqueue_against_the_end_of_its_session_runs_or_is_refused_and_no_turn_is_lost(database, tmp_path, how, order):
    """[S6], [S18], [S19], [S21]: an admitted Turn runs before a close ends, and keeps an idle close away."""
    end = {"close": Stage.close, "cancel": Stage.cancel, "idle close": Stage.idle_close}[how]
    async with house(database, tmp_path, IDLE) as h, referee(h) as r:
        for _ in range(often(8)):
            s = await idle(h)
            await over_its_period(s)
            async with r.queue(s.session) as q:
                if order == "enqueue first":
                    enqueue = await q.first(s.enqueue)
                    await q.then(lambda s=s: end(s))
                else:
                    await q.first(lambda s=s: end(s))
                    enqueue = await q.then(s.enqueue)
            await quiet(h.plane)
            status = (await h.session(s.session))["status"]
            if order == "end first":
                assert (enqueue.code, status, await statuses(s)) == ("session_not_open", "closed", [])
                continue
            assert enqueue.code == "ok"
            turn = json.loads(enqueue.value.body)["id"]
            if how == "cancel":
                assert (status, await statuses(s)) == ("closed", ["cancelled"])
                continue
            assert (status, await statuses(s)) == ("closing" if how == "close" else "open", ["running"])
            s.process.settle(turn)
            await quiet(h.plane)
            assert (await h.session(s.session))["status"] == ("closed" if how == "close" else "open")


async def test_enqueues_against_an_idle_close_at_the_same_instant_on_two_control_planes(database, tmp_path):
    """[S21]: nobody forces an order. A Turn that was admitted is there to run; one that was not is nowhere."""
    async with house(database, tmp_path, IDLE, size=16) as h, beside(h, tmp_path) as other:

        async def meet() -> None:
            s = await idle(h, plane=other)
            await over_its_period(s)
            enqueue, closed = await asyncio.gather(s.enqueue(), h.plane.controls.close_idle(s.session), return_exceptions=True)
            assert closed is isinstance(enqueue, HelmrError)
            assert await statuses(s) == ([] if closed else ["running"])

        for _ in range(0, often(30), 5):
            await asyncio.gather(*(meet() for _ in range(5)))


@pytest.mark.parametrize("order", ["hold first", "Turn first"])
@pytest.mark.parametrize("way", ["admission", "claim", "settlement"])
async def test_no_turn_starts_once_a_hold_has_committed(database, tmp_path, way, order):
    """[S16], [S17], DESIGN 7: each way in which a Turn starts, waiting for the lock that the interrupt has."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(6)):
            s = await idle(h)
            if way == "claim":
                s.hold = await place_hold(h, s.session)
                await s.enqueue()
                await _lift_silently(s)

                def start(s: Stage = s) -> None:
                    h.plane.dispatcher.claim(s.session)
            elif way == "settlement":
                s.turn = json.loads((await s.enqueue()).body)["id"]
                await s.enqueue()
                start = s.complete
            else:
                start = s.enqueue
            async with r.queue(s.session) as q:
                if order == "hold first":
                    await q.first(s.interrupt_session)
                    await q.then(start)
                else:
                    await q.first(start)
                    await q.then(s.interrupt_session)
            await quiet(h.plane)
            last = (await statuses(s))[-1]
            assert last == ("queued" if order == "hold first" else "running")
            kinds = await h.kinds(s.session)
            marked = order == "Turn first" or way == "settlement"
            assert ("turn.stopping" in kinds) == marked, "[S16]: it marks what runs"
            assert len((await h.session(s.session))["holds"]) == 1


async def _lift_silently(s: Stage) -> None:
    """As if whoever released the hold had died before it asked for the next Turn."""
    async with s.h.database.connection() as connection, connection.transaction():
        await connection.execute("UPDATE holds SET released_at = now() WHERE session_id = $1", s.session)
        await connection.execute("UPDATE sessions SET held = 0, idle_at = NULL WHERE id = $1", s.session)


@pytest.mark.parametrize("order", ["resume first", "other first"])
@pytest.mark.parametrize("other", ["interrupt", "close", "resume"])
async def test_a_resume_against_another_control_releases_its_hold_once_and_no_other(database, tmp_path, other, order):
    """[S17], [S18], [S20]: a second interrupt is a second hold; a close cancels what is held, or finds it free; a hold is released once."""
    second = {"interrupt": Stage.interrupt_session, "close": Stage.close, "resume": Stage.resume}[other]
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(6)):
            s = await idle(h)
            s.hold = json.loads((await s.interrupt_session()).body)["hold_id"]
            await s.enqueue()
            async with r.queue(s.session) as q:
                if order == "resume first":
                    resume = await q.first(s.resume)
                    rival = await q.then(lambda s=s: second(s))
                else:
                    rival = await q.first(lambda s=s: second(s))
                    resume = await q.then(s.resume)
            await quiet(h.plane)
            session, turns = await h.session(s.session), await statuses(s)
            holds = [hold["id"] for hold in session["holds"]]
            if other == "interrupt":
                assert (resume.code, rival.code) == ("ok", "ok")
                begun = order == "resume first" and "turn.stopping" in await h.kinds(s.session)  # the claim that follows came between
                assert (holds, turns) == ([json.loads(rival.value.body)["hold_id"]], ["running" if begun else "queued"])
            elif other == "close" and order == "resume first":
                assert (resume.code, rival.code, session["status"], turns) == ("ok", "ok", "closing", ["running"])
            elif other == "close":
                assert (resume.code, rival.code) == ("hold_not_found", "ok")
                assert (session["status"], holds, turns) == ("closed", [], ["cancelled"])
            else:
                assert sorted((resume.code, rival.code)) == ["hold_not_found", "ok"]
                assert (holds, turns) == ([], ["running"])
                assert (await h.kinds(s.session)).count("session.resume") == 1


@pytest.mark.ud("UD-23")
async def test_two_interrupts_and_their_resumes_in_any_order_on_two_control_planes_leave_no_hold(database, tmp_path):
    """[S16], [S17]: four controls at once, then the same four again: what is held is what is in force."""
    async with house(database, tmp_path, size=16) as h, beside(h, tmp_path) as other:

        async def meet() -> None:
            s = await idle(h, plane=other)
            await h.plane.controls.interrupt(h.principal, s.session, None)
            turn = json.loads((await s.enqueue()).body)["id"]
            planes = (h.plane, other)
            for _ in range(2):
                holds = [hold["id"] for hold in (await h.session(s.session))["holds"]]
                await asyncio.gather(
                    *(plane.controls.interrupt(h.principal, s.session, None) for plane in planes),
                    *(planes[n % 2].controls.resume(h.principal, s.session, hold, None) for n, hold in enumerate(holds)),
                )
            left = [hold["id"] for hold in (await h.session(s.session))["holds"]]
            assert len(left) == 2
            assert await statuses(s) == (["running"] if turn in s.process.started else ["queued"]), "a resume may have come first"
            await asyncio.gather(*(planes[n].controls.resume(h.principal, s.session, hold, None) for n, hold in enumerate(left)))
            await s.process.began(turn)
            assert (await h.session(s.session))["holds"] == []

        for _ in range(0, often(20), 5):
            await asyncio.gather(*(meet() for _ in range(5)))
        await quiet(h.plane, other)
