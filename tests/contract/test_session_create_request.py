"""contract, "Client: create a Session": the table of options, row by row."""

from __future__ import annotations

import pytest
from tests.contract.stage import play

from helmr.protocol.errors import (
    AgentNotFound,
    ChannelUnavailable,
    ComputerNotFound,
    IdempotencyConflict,
    InvalidValue,
    SessionKeyConflict,
)
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def nothing(turn, ctx):
    return None


async def test_agent_is_an_authored_id_of_the_current_deployment(stage):
    made = await stage.client.sessions.create(agent="actor")
    assert (made.agent, (await made.session.get()).agent) == ("actor", "actor")
    with pytest.raises(AgentNotFound):
        await stage.client.sessions.create(agent="nobody")


async def test_input_makes_the_first_turn_and_none_makes_no_turn(stage):
    made = await stage.begin(nothing)
    assert (made.turn.sequence, (await made.session.get()).initial_turn.id) == (1, made.turn.id)
    empty = await stage.client.sessions.create(agent="actor")
    session = await empty.session.get()
    assert (empty.turn, session.initial_turn, session.computer_id) == (None, None, None)


async def test_slack_channel_needs_a_slack_app(stage):
    with pytest.raises(ChannelUnavailable):
        await stage.client.sessions.create(agent="actor", slack={"channel_id": "C0123456789"})


async def test_computer_runs_it_on_an_existing_one_which_is_a_member_from_creation(stage):
    first = await stage.begin(nothing)
    await first.turn.wait()
    computer = (await first.session.get()).computer_id
    made = await stage.client.sessions.create(agent="actor", computer={"id": computer})
    assert (await made.session.get()).computer_id == computer
    assert [event.kind for event in await stage.events(made.session)] == ["computer.assigned"]
    for unknown, error in ((new_id(), ComputerNotFound), ("nonsense", InvalidValue)):
        with pytest.raises(error):
            await stage.client.sessions.create(agent="actor", computer={"id": unknown})


async def test_without_a_computer_one_is_assigned_on_the_first_input(stage):
    made = await stage.client.sessions.create(agent="actor")
    assert (await made.session.get()).computer_id is None
    await (await made.session.enqueue(play(nothing))).wait()
    assert (await made.session.get()).computer_id is not None


@pytest.mark.parametrize("key", ["issue-1", "é \U0001f600", "k" * 512])
async def test_key_is_unique_within_its_agent_for_ever(stage, key):
    made = await stage.client.sessions.create(agent="actor", key=key)
    other = await stage.client.sessions.create(agent="typed", key=key)
    for _ in ("while open", "after close"):
        with pytest.raises(SessionKeyConflict) as refused:
            await stage.client.sessions.create(agent="actor", key=key)
        assert refused.value.facts["session_id"] == made.session.id
        await made.session.close()
    assert (await other.session.get()).key == key


@pytest.mark.parametrize("key", ["", "k" * 513, "é" * 257, "\0"])
async def test_key_is_1_to_512_bytes(stage, key):
    with pytest.raises(InvalidValue):
        await stage.client.sessions.create(agent="actor", key=key)


async def test_idempotency_key_makes_an_exact_retry_safe_also_of_an_empty_session(stage):
    """The original receipt, a null first Turn included; another request is refused."""
    empty = await stage.client.sessions.create(agent="actor", idempotency_key="empty")
    again = await stage.client.sessions.create(agent="actor", idempotency_key="empty")
    assert (again.session.id, again.turn, again.replayed) == (empty.session.id, None, True)
    asked = play(nothing)
    full = await stage.client.sessions.create(agent="actor", input=asked, idempotency_key="full")
    again = await stage.client.sessions.create(agent="actor", input=asked, idempotency_key="full")
    assert (again.session.id, again.turn.id, again.replayed) == (full.session.id, full.turn.id, True)
    with pytest.raises(IdempotencyConflict):
        await stage.client.sessions.create(agent="actor", input=asked, idempotency_key="empty")
    assert [event.kind for event in await stage.events(full.session)].count("turn.queued") == 1


async def test_without_an_idempotency_key_each_call_is_new(stage):
    made = [(await stage.client.sessions.create(agent="actor")).session.id for _ in range(2)]
    assert made[0] != made[1]
