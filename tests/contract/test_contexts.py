"""contract, "InitContext and AgentContext": the table of their members, row by row."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.stage import INITS, play

from helmr.protocol.unset import UNSET
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


async def test_session_id_key_and_parent(stage):
    async def handler(turn, ctx):
        parent = ctx.session.parent
        return [ctx.session.id, ctx.session.key, None if parent is None else parent.id]

    made = await stage.begin(handler, key="with a key")
    assert (await made.turn.wait()).result == [made.session.id, "with a key", None]
    child = stage.by("spawn", made.session.id, agent="actor", input=play(handler))
    outcome = await stage.client.sessions.ref(child["session"]["id"]).turns.ref(child["turn"]["id"]).wait()
    assert outcome.result == [child["session"]["id"], None, made.session.id]


async def test_computer_id_and_deployment_id(stage):
    async def handler(turn, ctx):
        return [ctx.computer.id, ctx.deployment.id]

    made = await stage.begin(handler)
    outcome = await made.turn.wait()
    session = await made.session.get()
    assert outcome.result == [session.computer_id, session.deployment_id] and session.deployment_id == made.deployment_id


async def test_recovery_is_initial_then_reconstructed_and_init_runs_again(stage):
    async def handler(turn, ctx):
        return [ctx.recovery.kind, ctx.recovery.reason]

    made = await stage.begin(handler)
    assert (await made.turn.wait()).result == ["initial", None]
    await stage.runtime.lose(made.session)
    await stage.until(made.session, "session.process_failed")
    await stage.runtime.clock.advance("5s")
    assert (await (await made.session.enqueue(play(handler))).wait()).result == ["reconstructed", "process_lost"]
    assert INITS.count(made.session.id) == 2


async def test_signal_aborts_when_the_process_shuts_down(stage):
    seen, aborted = [], Gate()

    async def handler(turn, ctx):
        async def watch():
            seen.append(await ctx.signal.wait())
            aborted.open()

        assert not ctx.signal.aborted
        _KEPT.append(asyncio.create_task(watch()))

    made = await stage.begin(handler)
    await made.turn.wait()
    assert seen == [], "it lives on between Turns"
    await made.session.close()
    await aborted.wait()
    assert seen == ["shutdown"]


_KEPT: list[asyncio.Task[None]] = []


async def test_init_result_is_what_init_returned_once_for_all_turns(stage):
    async def handler(turn, ctx):
        return ctx.init_result

    made = await stage.begin(handler)
    first = await made.turn.wait()
    second = await (await made.session.enqueue(play(handler))).wait()
    assert first.result == second.result == {"begun": made.session.id}
    assert INITS.count(made.session.id) == 1


async def test_init_result_is_none_without_init(stage):
    async def handler(turn, ctx):
        return ctx.init_result

    assert (await stage.outcome(handler, agent="briefly")).result is None


async def test_the_session_shows_no_key_when_it_has_none(stage):
    made = await stage.client.sessions.create(agent="actor")
    assert (await made.session.get()).key is UNSET
