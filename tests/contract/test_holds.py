"""contract, "Holds": what each kind comes from, what it reaches, and what it does not keep open."""

from __future__ import annotations

import pytest
from tests.contract.stage import AGENTS, play, small

from helmr import agent
from helmr.protocol.errors import HoldNotFound, HoldNotReleasable
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def nothing(turn, ctx):
    return "done"


async def held(stage, kind, **options):
    """A Session with a hold of that kind, as its cause places it."""
    made = await stage.client.sessions.create(agent=options.pop("agent", "actor"))
    hold = new_id()
    stage.execute("INSERT INTO holds VALUES ($1, $2, $3, '{}', NULL, now())", hold, made.session.id, kind)
    stage.execute("UPDATE sessions SET held = held + 1 WHERE id = $1", made.session.id)
    return made.session, hold


@pytest.mark.parametrize("kind", ["interrupt", "process_failed", "recovery_gap", "storage_pressure"])
async def test_a_hold_of_any_kind_pauses_dispatch(stage, kind):
    """[S17]; `explain` says so [S23]."""
    session, _ = await held(stage, kind)
    turn = await session.enqueue(play(nothing))
    assert (await turn.get()).status == "queued" and (await turn.wait(timeout="30ms")).status == "timeout"
    explained = await session.explain()
    assert explained.state == "held" and kind in str(explained.facts["holds"])


@pytest.mark.parametrize(
    ("kind", "inherited"), [("interrupt", True), ("process_failed", False), ("recovery_gap", False), ("storage_pressure", False)]
)
async def test_only_an_interrupt_reaches_owned_descendants(stage, kind, inherited):
    """[S16]."""
    session, hold = await held(stage, kind)
    child = stage.by("spawn", session.id, agent="actor", input=play(nothing))
    ref = stage.client.sessions.ref(child["session"]["id"])
    found = [seen.id for seen in (await ref.get()).holds]
    assert found == ([hold] if inherited else [])
    turn = ref.turns.ref(child["turn"]["id"])
    if inherited:
        assert (await turn.wait(timeout="30ms")).status == "timeout"
    else:
        assert (await turn.wait()).status == "completed"


@pytest.mark.parametrize("kind", ["interrupt", "process_failed", "recovery_gap"])
async def test_resume_releases_one_exact_hold(stage, kind):
    session, hold = await held(stage, kind)
    turn = await session.enqueue(play(nothing))
    await session.resume(hold_id=hold)
    assert (await turn.wait()).status == "completed" and (await session.get()).holds == ()
    with pytest.raises(HoldNotFound):
        await session.resume(hold_id=hold)


async def test_storage_pressure_is_released_by_the_system_alone(stage):
    session, hold = await held(stage, "storage_pressure")
    with pytest.raises(HoldNotReleasable):
        await session.resume(hold_id=hold)


async def test_three_failures_in_a_row_place_process_failed_and_a_resume_starts_a_new_process_that_runs_init(stage):
    """[S14]: `init` counts too; back-off lies between the tries."""
    inits = []

    async def fails(ctx):
        inits.append(ctx.recovery.kind)
        if len(inits) <= 3:
            raise ValueError("on purpose")

    @agent(id="shaky", template=small, init=fails)
    async def shaky(turn, ctx):
        return "done"

    await stage.runtime.deploy(*AGENTS, shaky)
    made = await stage.client.sessions.create(agent="shaky", input=play(nothing))
    for count in (1, 2, 3):
        await stage.until(made.session, "session.process_failed", count)
        if count < 3:
            await stage.runtime.clock.advance("5s")
    (hold,) = (await made.session.get()).holds
    assert (hold.kind, hold.can_release, len(inits)) == ("process_failed", True, 3)
    assert (await made.turn.get()).status == "queued", "a Turn that never began is not lost"
    await made.session.resume(hold_id=hold.id)
    assert (await made.turn.wait()).status == "completed"
    assert inits == ["initial"] * 4
    await stage.runtime.deploy(*AGENTS)


async def test_a_hold_does_not_keep_a_session_open(stage):
    """[S21]: queued Turns that it blocks are no work: the idle period closes it, owned Sessions under an owner's interrupt too."""
    parent = await stage.client.sessions.create(agent="actor")
    await parent.session.interrupt()
    child = stage.by("spawn", parent.session.id, agent="briefly", input=play(nothing))
    alone, _ = await held(stage, "process_failed", agent="briefly")
    blocked = await alone.enqueue(play(nothing))
    owned = stage.client.sessions.ref(child["session"]["id"])
    turn = owned.turns.ref(child["turn"]["id"])
    assert (await alone.get()).idle_since is not None
    await stage.runtime.clock.advance("601s")
    for session in (alone, owned):
        assert (await session.get()).close_reason == "idle"
    assert {(await each.get()).status for each in (blocked, turn)} == {"cancelled"}
    assert (await parent.session.get()).status == "open", "its own period is longer"
