"""contract, "SessionRef": the table of its methods, row by row; and `sessions.get`, `list`, `ref`."""

from __future__ import annotations

import pytest
from tests.contract.stage import play

from helmr.client import SessionRef, TurnRef
from helmr.protocol.errors import HelmrError, InvalidCursor, SessionNotFound
from helmr.protocol.ids import new_id
from helmr.protocol.shapes import (
    EventPage,
    Session,
    SessionInterruptReceipt,
    SessionResumeReceipt,
    SessionStatusReceipt,
    TurnPage,
)
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


async def nothing(turn, ctx):
    return turn.sequence


@pytest.fixture(scope="module")
async def settled(stage):
    """A Session with five completed Turns."""
    made = await stage.begin(nothing)
    turns = [made.turn] + [await made.session.enqueue(play(nothing)) for _ in range(4)]
    for turn in turns:
        await turn.wait()
    return made.session, turns


async def test_ref_makes_no_request_so_only_a_call_tells_that_nobody_has_the_id(stage):
    ref = stage.client.sessions.ref(new_id())
    assert isinstance(ref, SessionRef)
    for ask in (ref.get, ref.close, ref.interrupt, ref.turns.list, ref.events.list):
        with pytest.raises(SessionNotFound):
            await ask()
    with pytest.raises(SessionNotFound):
        await stage.client.sessions.get(ref.id)


async def test_get_is_the_session_now(stage, settled):
    session, _ = settled
    shape = await session.get()
    assert isinstance(shape, Session) and shape == await stage.client.sessions.get(session.id)


async def test_enqueue_always_admits_a_new_turn_and_once_under_one_key(stage):
    made = await stage.client.sessions.create(agent="actor")
    asked = play(nothing)
    first, second = await made.session.enqueue(asked), await made.session.enqueue(asked)
    assert isinstance(first, TurnRef) and first.id != second.id
    third = await made.session.enqueue(asked, idempotency_key="once")
    again = await made.session.enqueue(asked, idempotency_key="once")
    assert (again.id, again.sequence) == (third.id, 3)
    assert [(await turn.wait()).result for turn in (first, second, third)] == [1, 2, 3]


async def test_turns_ref_is_a_local_handle(stage, settled):
    session, turns = settled
    ref = session.turns.ref(turns[2].id)
    assert (ref.id, ref.session_id) == (turns[2].id, session.id)
    assert (await ref.get()).sequence == 3


async def test_turns_list_is_in_admission_order_in_pages_of_1_to_100(stage, settled):
    session, turns = settled
    page = await session.turns.list(limit=2)
    assert isinstance(page, TurnPage)
    seen = list(page.items)
    while page.next_cursor is not None:
        page = await session.turns.list(limit=2, cursor=page.next_cursor)
        seen += page.items
    assert [(turn.id, turn.sequence) for turn in seen] == [(turn.id, number) for number, turn in enumerate(turns, 1)]
    for limit in (0, 101):
        with pytest.raises(HelmrError) as refused:
            await session.turns.list(limit=limit)
        assert refused.value.status in (400, 422)


async def test_events_list_begins_after_0_with_100_and_at_most_1000(stage):
    """[E3]."""

    async def chatty(turn, ctx):
        await turn.output.pipe(str(number) for number in range(1100))

    made = await stage.begin(chatty)
    await made.turn.wait()
    first = await made.session.events.list()
    assert isinstance(first, EventPage) and [event.sequence for event in first.records] == list(range(1, 101))
    assert (first.next_after, first.has_more, first.retained_after, first.sealed) == (100, True, 0, False)
    most = await made.session.events.list(after=50, limit=1000)
    assert [event.sequence for event in most.records] == list(range(51, 1051)) and most.has_more
    rest = await made.session.events.list(after=most.next_after, limit=1000)
    assert not rest.has_more and rest.records[-1].kind == "turn.completed"
    at_the_end = await made.session.events.list(after=rest.next_after)
    assert (at_the_end.records, at_the_end.next_after) == ((), rest.next_after)
    with pytest.raises(InvalidCursor):
        await made.session.events.list(after=rest.next_after + 1)
    for limit in (0, 1001):
        with pytest.raises(HelmrError) as refused:
            await made.session.events.list(limit=limit)
        assert refused.value.status in (400, 422)


async def test_events_stream_follows_from_after_to_the_end(stage):
    """[E4]."""
    made = await stage.begin(nothing)
    await made.turn.wait()
    await made.session.close()
    streamed = [event async for event in made.session.events.stream(after=2)]
    assert streamed == (await stage.events(made.session))[2:]


async def test_interrupt_gives_the_hold_and_once_under_one_key(stage):
    made = await stage.client.sessions.create(agent="actor")
    receipt = await made.session.interrupt(idempotency_key="once")
    assert isinstance(receipt, SessionInterruptReceipt)
    assert receipt == await made.session.interrupt(idempotency_key="once")
    assert [hold.id for hold in (await made.session.get()).holds] == [receipt.hold_id]


async def test_resume_releases_the_exact_hold_and_once_under_one_key(stage):
    made = await stage.client.sessions.create(agent="actor")
    first, second = await made.session.interrupt(), await made.session.interrupt()
    receipt = await made.session.resume(hold_id=first.hold_id, idempotency_key="once")
    assert isinstance(receipt, SessionResumeReceipt)
    assert receipt == await made.session.resume(hold_id=first.hold_id, idempotency_key="once")
    assert [hold.id for hold in (await made.session.get()).holds] == [second.hold_id]


@pytest.mark.parametrize("name", ["close", "cancel"])
async def test_close_and_cancel_give_the_status_and_once_under_one_key(stage, name):
    gate = Gate()

    async def waits(turn, ctx):
        await gate.wait()

    made = await stage.begin(waits)
    await stage.until(made.session, "turn.running")
    receipt = await getattr(made.session, name)(idempotency_key="once")
    assert isinstance(receipt, SessionStatusReceipt)
    assert receipt.status == {"close": "closing", "cancel": "closed"}[name]
    gate.open()
    await stage.until(made.session, "session.closed")
    assert await getattr(made.session, name)(idempotency_key="once") == receipt, "the receipt of an exact retry is the original one"
