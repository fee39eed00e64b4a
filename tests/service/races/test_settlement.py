"""The end of a Turn against everything that ends it otherwise: whoever commits first decides, whole. [S7], [S10]-[S14], [E2], I1."""

from __future__ import annotations

import asyncio

import pytest
from tests.effort import often
from tests.service.races.forcing import away_at, quiet, referee, until
from tests.service.races.planes import beside
from tests.service.races.staging import Stage, place_hold, stage
from tests.service.scripted import agent, house

from helmr.protocol.errors import HelmrError, MessageClosed

pytestmark = pytest.mark.anyio

LONG = agent("talker", max_turn_duration_ms=3_600_000)
STOPS = {
    # what comes, the code of its refusal after the completion, the Turn's status if it comes first
    "turn interrupt": (Stage.interrupt_turn, "turn_not_running", "interrupted"),
    "session interrupt": (Stage.interrupt_session, "ok", "interrupted"),
    "cancel": (Stage.cancel, "ok", "cancelled"),
    "deadline": (Stage.deadline, "ok", "failed"),
    "failing handler": (Stage.marks, "ok", "failed"),
}


@pytest.mark.ud("UD-11")
@pytest.mark.parametrize(
    ("name", "order"),
    # One guest says both that it failed and that it settled, in its own order.
    [
        (name, order)
        for name in STOPS
        for order in ("completion first", "stop first")
        if (name, order) != ("failing handler", "completion first")
    ],
)
async def test_a_completion_against_a_stop_is_decided_by_who_commits_first(database, tmp_path, name, order):
    """[S11]: from the mark's commit the Turn can't complete; after its end nothing marks it."""
    stop, refusal, stopped = STOPS[name]
    async with house(database, tmp_path, LONG) as h, referee(h) as r:
        for _ in range(often(8)):
            s = await stage(h, loose=False, queued=False, overdue=True)
            async with r.queue(s.session) as q:
                if order == "completion first":
                    await q.first(s.complete)
                    two = await q.then(lambda s=s: stop(s))
                else:
                    two = await q.first(lambda s=s: stop(s))
                    await q.then(s.complete)
            await quiet(h.plane)
            state = await h.turn(s.session, s.turn, 0)
            if order == "completion first":
                assert (state["status"], state["result"], two.code) == ("completed", 7, refusal)
                assert "turn.stopping" not in await h.kinds(s.session)
            else:
                assert (state["status"], two.code) == (stopped, "ok")
                assert "result" not in state and "response" not in state


async def test_at_the_same_instant_on_two_control_planes_a_completion_and_an_interrupt_are_one_or_the_other(database, tmp_path):
    """[S11], I1: nobody forces an order here; either is right, half of each is not."""
    async with house(database, tmp_path, size=16) as h, beside(h, tmp_path) as other:

        async def meet(n: int) -> None:
            s = await stage(h, plane=other, loose=False, queued=False)
            stops = (s.interrupt_turn, s.cancel, s.interrupt_session)
            said = asyncio.create_task(s.complete())
            try:
                await stops[n % 3]()
                code = "ok"
            except HelmrError as error:
                code = error.code
            await said
            state = await h.turn(s.session, s.turn)
            kinds = await h.kinds(s.session)
            assert kinds.count(f"turn.{state['status']}") == 1
            assert (code == "turn_not_running") <= (state["status"] == "completed")
            assert ("turn.stopping" in kinds) <= (state["status"] == "interrupted")

        for start in range(0, often(48), 6):
            await asyncio.gather(*(meet(n) for n in range(start, start + 6)))
        await quiet(h.plane, other)


@pytest.mark.ud("UD-11")
@pytest.mark.parametrize("later", ["output", "ask", "settles", "dies", "fails", "is interrupted", "close", "cancel"])
async def test_a_stop_mark_stands_whatever_comes_after_it(database, tmp_path, later):
    """[S11]: the Turn ends as its mark says; only cancel overrides it; what it asks is cancelled, what it writes is kept."""
    steps = {
        "output": Stage.output, "ask": Stage.asks, "settles": Stage.complete, "dies": Stage.dies, "is interrupted": Stage.interrupt_session,
        "close": Stage.close, "cancel": Stage.cancel,
        "fails": lambda s: s.process.say("turn.stopping", turn=s.turn, cause="handler_failed", error={"code": "handler_failed"}),
    }  # fmt: skip
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(6)):
            s = await stage(h)
            async with r.queue(s.session) as q:
                mark = await q.first(s.interrupt_turn)
                two = await q.then(lambda s=s: steps[later](s))
            if later not in ("settles", "dies", "cancel"):
                await s.complete()
            await quiet(h.plane)
            assert (mark.code, two.code) == ("ok", "ok")
            kinds = await h.kinds(s.session)
            assert (await h.turn(s.session, s.turn))["status"] == ("cancelled" if later == "cancel" else "interrupted")
            assert kinds.count("turn.stopping") == 1
            assert kinds.count("turn.output") == (later == "output")
            assert kinds.count("question.cancelled") == 1 + (later == "ask")
            assert "question.responded" not in kinds


@pytest.mark.ud("UD-08")
async def test_a_message_that_meets_the_handlers_return_is_ended_or_refused_never_lost(database, tmp_path):
    """[S7], [S10]: its registration closes, then it settles. A message is admitted before that and ends, or it is refused."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for n in range(often(16)):
            s = await stage(h, loose=False, queued=False)
            async with r.queue(s.session) as q:
                send = await q.first(s.send) if n % 2 else None
                await q.then(s.shuts) if n % 2 else await q.first(s.shuts)
                send = send or await q.then(s.send)
                s.process.settle(s.turn, result=1)
            await quiet(h.plane)
            assert (await h.turn(s.session, s.turn))["status"] == "completed"
            kinds = await h.kinds(s.session)
            if send.code == "ok":
                assert n % 2 and kinds.count("message.rejected") == 1
                assert kinds.index("message.admitted") < kinds.index("message.rejected") < kinds.index("turn.completed")
            else:
                assert send.code == "message_closed" and "message.admitted" not in kinds


async def test_a_message_between_the_two_commits_of_a_settlement_is_refused(database, tmp_path):
    """[S7]: settling is no longer running. It was accepted, only to be rejected at once, when a guest left its registration open."""
    async with house(database, tmp_path) as h:
        s = await stage(h)
        with away_at("after_commit:tie_up") as passes:  # what is open has been ended, and the Turn can't settle yet
            s.process.settle(s.turn, result=1)
            await until(lambda: passes)
            with pytest.raises(MessageClosed):
                await s.send()
        assert (await h.turn(s.session, s.turn))["status"] == "completed"
        assert (await h.kinds(s.session)).count("message.admitted") == 2


async def test_a_settlement_with_open_ends_outlives_a_database_that_is_away_between_its_two_commits(database, tmp_path):
    """I6, [E2]: it was lost, and the Turn ran for ever, since a guest says it once."""
    async with house(database, tmp_path) as h:
        for point in ("before_commit:tie_up", "after_commit:tie_up"):
            s = await stage(h)
            with away_at(point) as passes:
                s.process.settle(s.turn, result=1)
                await until(lambda passes=passes: len(passes) == 2)
            assert (await h.turn(s.session, s.turn))["status"] == "completed"
            assert (await h.kinds(s.session)).count("message.rejected") == 2


async def test_a_turn_that_a_closing_session_lets_finish_completes_although_its_queue_was_cancelled(database, tmp_path):
    """[S18], I1: the settlement looked for its Turn where the cancelled queue had ended, and left it running for ever."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for n in range(often(8)):
            s = await stage(h, loose=False, held=True)
            async with r.queue(s.session) as q:
                await q.first(s.close)
                await q.then(s.complete if n % 2 else s.fail)
            await quiet(h.plane)
            assert (await h.turn(s.session, s.turn, 0))["status"] == ("completed" if n % 2 else "failed")
            assert (await h.turn(s.session, s.queued, 0))["status"] == "cancelled"
            assert (await h.session(s.session))["status"] == "closed"


async def test_a_hold_that_comes_while_closing_cancels_what_it_blocks_and_lets_finish_what_runs(database, tmp_path):
    """[S18]: the same Turn, whichever of the two commits first."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for n in range(often(6)):
            s = await stage(h, loose=False)
            async with r.queue(s.session) as q:
                hold, close = (lambda s=s: place_hold(h, s.session)), s.close
                await q.first(hold if n % 2 else close)
                await q.then(close if n % 2 else hold)
            await s.complete()
            await quiet(h.plane)
            states = [(await h.turn(s.session, turn, 0))["status"] for turn in (s.turn, s.queued)]
            assert states == ["completed", "cancelled"]
            assert (await h.session(s.session))["status"] == "closed"


async def test_what_a_process_said_before_it_died_is_stored_before_its_death_is(database, tmp_path):
    """[S14], I4: its settlement waits for the lock when its exit is reported; the Turn has completed."""
    async with house(database, tmp_path) as h, referee(h) as r:
        for _ in range(often(8)):
            s = await stage(h, loose=False, queued=False)
            async with r.queue(s.session) as q:
                await q.first(lambda s=s: s.process.settle(s.turn, result=1))
                s.process.die("killed", signal=9)
                guest = h.plane.dispatcher.roster.guest_of(s.session)
                await until(lambda guest=guest: guest.task is not None)  # the report waits for what was said before it
            await quiet(h.plane)
            kinds = await h.kinds(s.session)
            assert (await h.turn(s.session, s.turn))["status"] == "completed"
            assert kinds.index("turn.completed") < kinds.index("session.process_failed")
