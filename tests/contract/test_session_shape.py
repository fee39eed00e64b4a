"""contract, "Session": the table of its fields, row by row."""

from __future__ import annotations

import re

import pytest
from tests.contract.stage import play

from helmr.protocol.ids import is_id, new_id
from helmr.protocol.shapes import TurnSummary
from helmr.protocol.unset import UNSET
from helmr.testing import Gate

pytestmark = pytest.mark.anyio

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


async def nothing(turn, ctx):
    return None


async def test_id_deployment_id_and_root_session_id(stage):
    made = await stage.client.sessions.create(agent="actor")
    shape = await made.session.get()
    assert (shape.id, shape.root_session_id, shape.deployment_id) == (made.session.id, made.session.id, made.deployment_id)
    assert all(is_id(value) for value in (shape.id, shape.deployment_id))
    child = stage.by("spawn", shape.id, agent="actor")["session"]["id"]
    below = stage.by("spawn", child, agent="actor")["session"]["id"]
    assert (await stage.client.sessions.get(below)).root_session_id == shape.id


async def test_agent_and_template_are_the_authored_identifiers(stage):
    shape = await (await stage.client.sessions.create(agent="typed")).session.get()
    assert (shape.agent, shape.template) == ("typed", "small")


async def test_computer_id_parent_session_id_and_requester_session_id_are_ids_or_null(stage):
    made = await stage.begin(nothing)
    await made.turn.wait()
    shape = await made.session.get()
    assert is_id(shape.computer_id) and (shape.parent_session_id, shape.requester_session_id) == (None, None)
    child = await stage.client.sessions.get(stage.by("spawn", shape.id, agent="actor")["session"]["id"])
    started = await stage.client.sessions.get(stage.by("start", shape.id, agent="actor")["session"]["id"])
    assert (child.computer_id, child.parent_session_id, child.requester_session_id) == (None, shape.id, shape.id)
    assert (started.parent_session_id, started.requester_session_id) == (None, shape.id)


async def test_key_is_there_only_when_given(stage):
    assert (await (await stage.client.sessions.create(agent="actor", key="k")).session.get()).key == "k"
    assert (await (await stage.client.sessions.create(agent="actor")).session.get()).key is UNSET


async def test_slack_channel_id_is_absent_without_slack(stage):
    assert (await (await stage.client.sessions.create(agent="actor")).session.get()).slack_channel_id is UNSET


async def test_status_is_open_closing_or_closed(stage):
    gate = Gate()

    async def waits(turn, ctx):
        await gate.wait()

    made = await stage.begin(waits)
    await stage.until(made.session, "turn.running")
    assert (await made.session.get()).status == "open"
    await made.session.close()
    assert (await made.session.get()).status == "closing"
    gate.open()
    await stage.until(made.session, "session.closed")
    assert (await made.session.get()).status == "closed"


@pytest.mark.parametrize(("agent", "period"), [("actor", "7d"), ("briefly", "10m")])
async def test_close_after_idle_is_that_of_the_pinned_definition(stage, agent, period):
    assert (await (await stage.client.sessions.create(agent=agent)).session.get()).close_after_idle == period


async def test_idle_since_is_a_time_while_idle_and_null_while_not(stage):
    """Also null once closed; of owned Sessions the latest counts."""
    gate = Gate()

    async def waits(turn, ctx):
        await gate.wait()

    made = await stage.client.sessions.create(agent="actor")
    idle = (await made.session.get()).idle_since
    assert TIME.fullmatch(idle)
    child = stage.by("spawn", made.session.id, agent="actor", input=play(waits))
    assert (await made.session.get()).idle_since is None
    gate.open()
    await stage.client.sessions.ref(child["session"]["id"]).turns.ref(child["turn"]["id"]).wait()
    assert (await made.session.get()).idle_since == (await stage.client.sessions.get(child["session"]["id"])).idle_since > idle
    await made.session.close()
    assert (await made.session.get()).idle_since is None


async def test_initial_turn_is_the_first_one_with_its_status_now_or_null(stage):
    made = await stage.client.sessions.create(agent="actor")
    assert (await made.session.get()).initial_turn is None
    first = await made.session.enqueue(play(nothing))
    await first.wait()
    await (await made.session.enqueue(play(nothing))).wait()
    assert (await made.session.get()).initial_turn == TurnSummary(id=first.id, status="completed")


async def test_holds_have_id_session_kind_time_and_whether_they_can_be_released(stage):
    made = await stage.client.sessions.create(agent="actor")
    child = stage.by("spawn", made.session.id, agent="actor")["session"]["id"]
    receipt = await made.session.interrupt()
    for session in (made.session.id, child):
        (hold,) = (await stage.client.sessions.get(session)).holds
        assert (hold.id, hold.session_id, hold.kind, hold.can_release) == (receipt.hold_id, made.session.id, "interrupt", True)
        assert TIME.fullmatch(hold.created_at) and hold.recovery_gap is UNSET


@pytest.mark.parametrize(("kind", "can_release"), [("process_failed", True), ("recovery_gap", True), ("storage_pressure", False)])
async def test_holds_of_each_kind(stage, kind, can_release):
    made = await stage.client.sessions.create(agent="actor")
    gap = '{"first":2,"last":3}' if kind == "recovery_gap" else None
    stage.execute("INSERT INTO holds VALUES ($1, $2, $3, '{}', convert_to($4, 'UTF8'), now())", new_id(), made.session.id, kind, gap)
    stage.execute("UPDATE sessions SET held = held + 1 WHERE id = $1", made.session.id)
    (hold,) = (await made.session.get()).holds
    assert (hold.kind, hold.can_release) == (kind, can_release)
    assert hold.recovery_gap == ({"first": 2, "last": 3} if gap else UNSET)


async def test_a_closed_session_reports_no_holds_when_and_why_it_closed(stage):
    made = await stage.client.sessions.create(agent="actor")
    await made.session.interrupt()
    await made.session.close()
    shape = await made.session.get()
    assert (shape.status, shape.holds, shape.close_reason) == ("closed", (), "close") and TIME.fullmatch(shape.closed_at)


async def test_created_at(stage):
    assert TIME.fullmatch((await (await stage.client.sessions.create(agent="actor")).session.get()).created_at)
