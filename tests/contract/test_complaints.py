"""What users of comparable systems complain about, where a handler and a client show it. The marks name the entries (tests/demands.py)."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tests.contract.stage import play, small

from helmr import AgentContext, InitContext, Turn, agent, text
from helmr.protocol.errors import HoldNotFound, MessageClosed
from helmr.protocol.wire import to_wire
from helmr.testing import Gate, RuntimeFactory

pytestmark = pytest.mark.anyio
TERMINAL = {"turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"}


async def nothing(turn, ctx):
    return turn.sequence


# --- input ------------------------------------------------------------------------------------------------------------------


@pytest.mark.ud("UD-04")
async def test_five_inputs_during_a_long_turn_are_five_turns_with_their_own_input_and_source(stage):
    """[S6], [S8]: none is glued to another, cut, trimmed or moved; the last two of them are equal and stay two."""
    leave, seen = Gate(), []

    async def waits(turn, ctx):
        await leave.wait()

    async def tells(turn, ctx):
        seen.append((turn.id, turn.sequence, [dict(part) for part in turn.input], turn.source.kind))

    made = await stage.begin(waits)
    await stage.until(made.session, "turn.running")
    texts = [("  spaces  ", "\n"), ("",), ("\u00e9 e\u0301 \U0001f600\x00",), ("same", "twice"), ("same", "twice")]
    inputs = [play(tells, *rest) for rest in texts]
    inputs[4] = inputs[3]
    turns = [await made.session.enqueue(given) for given in inputs]
    assert len({turn.id for turn in turns}) == 5 and [turn.sequence for turn in turns] == [2, 3, 4, 5, 6]
    leave.open()
    for turn in turns:
        assert (await turn.wait()).status == "completed"
    assert seen == [(turn.id, turn.sequence, given, "api_key") for turn, given in zip(turns, inputs, strict=True)]
    states = [await turn.get() for turn in turns]
    assert [to_wire(state)["input"] for state in states] == inputs
    assert {state.source.kind for state in states} == {"api_key"}


# --- messages ---------------------------------------------------------------------------------------------------------------


@pytest.mark.ud("UD-06")
@pytest.mark.ud("UD-07")
async def test_messages_before_their_handler_are_refused_and_those_after_it_come_in_order(helmr_runtime: RuntimeFactory) -> None:
    """[S7]: while queued, during `init`, and before `on_message` was awaited; a refused one is stored nowhere and never comes later."""
    begin, initializing, running, listen, leave = Gate(), Gate(), Gate(), Gate(), Gate()
    seen: list[str] = []

    async def init(ctx: InitContext) -> None:
        initializing.open()
        await begin.wait()

    @agent(id="late", template=small, init=init)
    async def late(turn: Turn, ctx: AgentContext[None]) -> None:
        running.open()
        await listen.wait()
        await turn.on_message(lambda message: seen.append(message.content[0]["text"]))
        await turn.output.write("listening")
        await leave.wait()

    async with helmr_runtime(late) as runtime:
        made = await runtime.client.sessions.create(agent=late, input=[text("go")])
        await initializing.wait()
        for gate, reached in ((begin, running), (listen, None)):
            with pytest.raises(MessageClosed) as refused:
                await made.turn.send([text("too early")])
            assert refused.value.code == "message_closed" and not refused.value.retryable
            gate.open()
            if reached is not None:
                await reached.wait()
        await runtime.event(made, "turn.output")
        sent = [await made.turn.send([text(f"{number}")]) for number in range(5)]
        await runtime.event(made, "message.delivered", 5)
        leave.open()
        assert (await made.turn.wait()).status == "completed"
        assert seen == ["0", "1", "2", "3", "4"]
        events = (await made.session.events.list(limit=1000)).records
        admitted = [event.data["message_id"] for event in events if event.kind == "message.admitted"]
        delivered = [event.data["message_id"] for event in events if event.kind == "message.delivered"]
        assert admitted == delivered == [receipt.id for receipt in sent]


@pytest.mark.ud("UD-08")
@pytest.mark.parametrize("ends", ["returns", "responds and returns"])
async def test_a_message_callback_slower_than_its_handler_is_finished_before_the_turn_ends(stage, ends):
    """[S10]: it is joined, and what it writes is stored; a message behind it is rejected by name, none is forgotten."""
    taken, both, go = Gate(), Gate(), Gate()

    async def handler(turn, ctx):
        async def take(message):
            taken.open()
            await go.wait()
            await turn.output.write("handled")

        await turn.on_message(take)
        await turn.output.write("listening")
        await both.wait()
        if ends != "returns":
            await turn.respond("bye")
        return "returned"

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    first = await made.turn.send([text("one")])
    await taken.wait()
    second = await made.turn.send([text("two")])
    both.open()
    async with asyncio.timeout(10):
        while True:  # until the handler has returned, messages are taken
            try:
                await made.turn.send([text("more")])
            except MessageClosed:
                break
    assert (await made.turn.get()).status == "running"
    go.open()
    ended = await made.turn.wait()
    assert (ended.status, ended.result) == ("completed", "returned")
    events = await stage.events(made.session)
    told = [(event.kind, event.data.get("message_id")) for event in events if event.kind in ("message.delivered", "message.rejected")]
    assert told[0] in (("message.delivered", first.id), ("message.rejected", second.id))
    assert ("message.delivered", first.id) in told and ("message.rejected", second.id) in told
    reasons = {(event.data["reason"], event.data["delivery"]) for event in events if event.kind == "message.rejected"}
    assert reasons == {("turn_closed", "not_delivered")}
    assert [event.data[0]["text"] for event in events if event.kind == "turn.output"] == ["listening", "handled"]
    assert len(told) == [event.kind for event in events].count("message.admitted")
    assert events[-1].kind == "turn.completed"


# --- ends -------------------------------------------------------------------------------------------------------------------

ENDS = {
    "interrupt": ("interrupted", None),
    "session interrupt": ("interrupted", None),
    "cancel": ("cancelled", None),
    "deadline": ("failed", "deadline_exceeded"),
}


@pytest.mark.ud("UD-11")
@pytest.mark.ud("UD-12")
@pytest.mark.parametrize("way", ENDS)
async def test_a_stopped_turn_is_told_by_how_it_was_stopped_and_never_by_how_its_handler_ends(helmr_runtime: RuntimeFactory, way: str):
    """[S11], [S12], [S19]: one terminal event, equal to the status; no result, no response, whatever the Agent does about it."""
    handlers = ("sleeps", "finishes all the same", "fails all the same", "responded before")
    asleep, drained = {name: Gate() for name in handlers}, {name: Gate() for name in handlers}

    @agent(id="sleepy", template=small, max_turn_duration="1h")
    async def sleepy(turn: Turn, ctx: AgentContext[None]) -> int:
        name = turn.input[0]["text"]
        if name == "responded before":
            await turn.respond("done, really")
        asleep[name].open()
        try:
            await Gate().wait()
        except asyncio.CancelledError:
            if name == "finishes all the same":
                return 42
            if name == "fails all the same":
                raise ValueError("out of luck") from None
            raise
        finally:
            drained[name].open()
        return 0

    async with helmr_runtime(sleepy) as runtime:
        made = {name: await runtime.client.sessions.create(agent=sleepy, input=[text(name)]) for name in handlers}
        for name in handlers:
            await asleep[name].wait()
        if way == "deadline":
            await runtime.clock.advance("61m")
        for name, (session, turn) in {name: (each.session, each.turn) for name, each in made.items()}.items():
            if way != "deadline":
                await {"interrupt": turn.interrupt, "session interrupt": session.interrupt, "cancel": session.cancel}[way]()
            ended = await turn.wait()
            await drained[name].wait()
            status, code = ENDS[way]
            assert ended.status == status
            state = to_wire(await turn.get())
            assert state["status"] == status and not {"result", "response"} & state.keys()
            assert state.get("error", {}).get("code") == code
            if way == "cancel":
                await runtime.event(session, "session.process_stopped")
            ends = [event.kind for event in (await session.events.list(limit=1000)).records if event.kind in TERMINAL]
            assert ends == [f"turn.{status}"]


# --- holds ------------------------------------------------------------------------------------------------------------------


@pytest.mark.ud("UD-23")
@pytest.mark.ud("UD-25")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_each_of_three_holds_is_released_by_its_name_and_dispatch_waits_for_the_last(stage, order):
    """[S16], [S17]: two interrupts of its own and one of its parent; the listing is truthful after each step."""
    parent = (await stage.client.sessions.create(agent="actor")).session
    child = stage.client.sessions.ref(stage.by("spawn", parent.id, agent="actor")["session"]["id"])
    places = [child, parent, child]
    holds = [(await place.interrupt()).hold_id for place in places]
    turn = await child.enqueue(play(nothing))

    async def listed(session):
        return {hold.id for hold in (await session.get()).holds}

    left = list(range(3))
    for number in order:
        assert await listed(child) == {holds[each] for each in left}
        assert await listed(parent) == {holds[1]} & {holds[each] for each in left}
        assert (await turn.get()).status == "queued"
        elsewhere = parent if places[number] is child else child
        with pytest.raises(HoldNotFound):
            await elsewhere.resume(hold_id=holds[number])
        await places[number].resume(hold_id=holds[number])
        with pytest.raises(HoldNotFound):
            await places[number].resume(hold_id=holds[number])
        left.remove(number)
    assert await listed(child) == await listed(parent) == set()
    assert (await turn.wait()).status == "completed"


# --- bounds -----------------------------------------------------------------------------------------------------------------


@pytest.mark.ud("UD-102")
async def test_no_call_blocks_while_an_agent_is_stuck_in_init_and_accepted_is_not_running(helmr_runtime: RuntimeFactory) -> None:
    """[S9], [S23]: what was accepted says `queued`, why it can't run yet says `explain`; every call comes back by itself."""
    stuck, never = Gate(), Gate()

    async def init(ctx: InitContext) -> None:
        stuck.open()
        await never.wait()

    @agent(id="stuck", template=small, init=init)
    async def stuck_agent(turn: Turn, ctx: AgentContext[None]) -> None:
        raise AssertionError("init never ends")

    async with helmr_runtime(stuck_agent) as runtime, asyncio.timeout(30):
        made = await runtime.client.sessions.create(agent=stuck_agent, input=[text("go")])
        await stuck.wait()
        session, turn = made.session, made.turn
        second = await session.enqueue([text("more")])
        assert [(await each.get()).status for each in (turn, second)] == ["queued", "queued"]
        why = await session.explain()
        assert why.state == "starting" and "init" in why.sentence
        assert (await turn.wait(timeout="20ms")).status == "timeout"
        for call in (lambda: turn.send([text("hello")]), turn.interrupt):
            with pytest.raises(Exception) as refused:
                await call()
            assert refused.value.code in ("message_closed", "turn_not_running")
        assert (await session.get()).status == "open"
        assert [each.id for each in (await session.turns.list()).items] == [turn.id, second.id]
        hold = await session.interrupt()
        await session.resume(hold_id=hold.hold_id)
        assert (await session.explain()).state == "starting"
        assert (await session.cancel()).status == "closed"
        assert [(await each.wait()).status for each in (turn, second)] == ["cancelled", "cancelled"]
