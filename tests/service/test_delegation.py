"""Sessions that Sessions ask for: spawn, start and their limits. SPEC [M4], [S2]-[S4]."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.service.scripted import agent, deploy, house, manifest
from tests.service.trees import GO, as_session, control, root, spawn, working

from helmr.control.domain.delegation import DelegationLimits
from helmr.control.service.principals import ensure_environment, session_principal
from helmr.protocol.errors import (
    AgentNotFound,
    ComputerMismatch,
    ComputerNotFound,
    DelegationLimit,
    Forbidden,
    IdempotencyConflict,
    InputEmpty,
    SessionKeyConflict,
    SessionNotFound,
)
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def test_a_spawned_child_runs_and_knows_its_parent_and_who_asked(database, tmp_path):
    """[M4]: owned, on the parent's Deployment, its input's source is the asking Session and the Turn in which it asked."""
    async with house(database, tmp_path) as h:
        parent, _, turn = await working(h)
        child, process, first = await working(h, parent)
        assert process.opened["session"] == {"id": child, "parent": {"id": parent}}
        shape, above = await h.session(child), await h.session(parent)
        assert shape["parent_session_id"] == parent and shape["requester_session_id"] == parent
        assert shape["root_session_id"] == parent and shape["deployment_id"] == above["deployment_id"]
        assert shape["computer_id"] not in (None, above["computer_id"])
        state = await h.turn(child, first, 0)
        assert state["source"] == {"kind": "session", "requester_session_id": parent, "origin_turn_id": turn}
        queued = (await h.events(child))[0]
        assert queued["kind"] == "turn.queued" and queued["data"] == {"sequence": 1, "source": state["source"]}
        started = await process.heard("turn.start")
        assert started["turn"]["source"] == state["source"]


async def test_who_asks_is_a_session_of_the_environment_that_is_asked(database, tmp_path):
    """[O1]: a Session's authority names its Environment; one that names another one's reaches nothing, as if it were not there."""
    async with house(database, tmp_path) as h:
        asking = await root(h)
        async with h.database.connection() as connection:
            other = await ensure_environment(connection, "test", "other")
        await deploy(h.database, other, manifest())
        for principal in (session_principal(asking, other), session_principal(new_id(), h.principal.environment_id)):
            for make in (h.plane.sessions.spawn, h.plane.sessions.start):
                with pytest.raises(SessionNotFound):
                    await make(principal, agent="talker", input=GO)
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM sessions") == 1


async def test_a_child_that_is_made_outside_of_a_turn_names_no_origin_turn(database, tmp_path):
    """contract, InputSource: `origin_turn_id` is there when the input was created during a Turn."""
    async with house(database, tmp_path) as h:
        parent = await root(h)
        made = json.loads((await h.plane.sessions.spawn(as_session(h, parent), agent="talker", input=GO)).body)
        state = await h.turn(made["session"]["id"], made["turn"]["id"], 0)
        assert state["source"] == {"kind": "session", "requester_session_id": parent}


async def test_a_child_stays_on_its_parents_deployment_and_a_started_root_takes_the_current_one(database, tmp_path):
    """[M4], [S2]."""
    async with house(database, tmp_path) as h:
        parent = await root(h)
        pinned = (await h.session(parent))["deployment_id"]
        current = await deploy(h.database, h.principal.environment_id, manifest(agent("talker"), agent("newcomer")))
        assert (await h.session(await spawn(h, parent)))["deployment_id"] == pinned
        with pytest.raises(AgentNotFound):
            await spawn(h, parent, agent="newcomer")
        made = json.loads((await h.plane.sessions.start(as_session(h, parent), agent="newcomer")).body)
        shape = await h.session(made["session"]["id"])
        assert shape["deployment_id"] == current
        assert shape["parent_session_id"] is None and shape["root_session_id"] == shape["id"]
        assert shape["requester_session_id"] == parent


async def test_a_child_without_input_has_no_turn_and_is_idle(database, tmp_path):
    """[S1]."""
    async with house(database, tmp_path) as h:
        reply = json.loads((await h.plane.sessions.spawn(as_session(h, await root(h)), agent="talker", labels={"a": "b"}, key="k")).body)
        assert reply["turn"] is None
        shape = await h.session(reply["session"]["id"])
        assert shape["initial_turn"] is None and shape["idle_since"] is not None and shape["computer_id"] is None
        assert shape["labels"] == {"a": "b"} and shape["key"] == "k"
        with pytest.raises(InputEmpty):
            await spawn(h, shape["id"], input=[])


async def test_an_exact_retry_of_a_spawn_gives_the_first_receipt_even_after_its_parent_closed(database, tmp_path):
    """[S4]: one child; another request under the key is refused; a refused one is not remembered."""
    async with house(database, tmp_path) as h:
        parent = await root(h)
        by = as_session(h, parent)
        with pytest.raises(AgentNotFound):
            await h.plane.sessions.spawn(by, agent="nobody", idempotency_key="one")
        first = await h.plane.sessions.spawn(by, agent="talker", input=GO, idempotency_key="one")
        again = await h.plane.sessions.spawn(by, agent="talker", input=GO, idempotency_key="one")
        assert (again.body, again.replayed, first.replayed) == (first.body, True, False)
        with pytest.raises(IdempotencyConflict):
            await h.plane.sessions.spawn(by, agent="talker", idempotency_key="one")
        started = await h.plane.sessions.start(by, agent="talker", input=GO, idempotency_key="one")
        assert started.body != first.body, "another operation is another identity"
        await control(h, "cancel", parent)
        assert (await h.plane.sessions.spawn(by, agent="talker", input=GO, idempotency_key="one")).body == first.body
        narrowed = as_session(h, parent, grants=frozenset())
        with pytest.raises(Forbidden):
            await h.plane.sessions.spawn(narrowed, agent="talker", input=GO, idempotency_key="one")


async def test_a_taken_key_names_its_occupant_and_leaves_no_child(database, tmp_path):
    """[S3]."""
    async with house(database, tmp_path) as h:
        taken = (await h.create(None, key="desk"))["session"]["id"]
        parent = await root(h)
        with pytest.raises(SessionKeyConflict) as refused:
            await spawn(h, parent, key="desk", idempotency_key="k")
        assert refused.value.facts["session_id"] == taken
        assert await spawn(h, parent, key="other", idempotency_key="k")


async def test_a_child_may_share_its_parents_computer_if_it_is_made_of_the_same(database, tmp_path):
    """[M4], [S2]: placement `caller`."""
    async with house(database, tmp_path) as h:
        parent, _, _ = await working(h)
        child = await spawn(h, parent, computer="caller")
        assert (await h.session(child))["computer_id"] == (await h.session(parent))["computer_id"]
        assert await h.kinds(child) == ["computer.assigned"]
        computer = (await h.session(parent))["computer_id"]
        other = await root(h)
        assert (await h.session(await spawn(h, other, computer=computer)))["computer_id"] == computer
        for missing in (new_id(), "nonsense"):
            with pytest.raises(ComputerNotFound):
                await spawn(h, other, computer=missing)
        with pytest.raises(ComputerNotFound):
            await spawn(h, other, computer="caller")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET made_of = 'x'")
        with pytest.raises(ComputerMismatch):
            await spawn(h, parent, computer="caller")


async def test_only_a_session_spawns_and_starts(database, tmp_path):
    """[M4]: a key creates roots, by `create`."""
    async with house(database, tmp_path) as h:
        for make in (h.plane.sessions.spawn, h.plane.sessions.start):
            with pytest.raises(Forbidden):
                await make(h.principal, agent="talker")
        for make in (h.plane.sessions.spawn, h.plane.sessions.start):
            with pytest.raises(SessionNotFound):
                await make(as_session(h, new_id()), agent="talker")


async def test_sessions_are_owned_four_deep_and_no_deeper(database, tmp_path):
    """[M4]: an independent root begins a new tree."""
    async with house(database, tmp_path) as h:
        at = await root(h)
        for _ in range(4):
            at = await spawn(h, at)
        with pytest.raises(DelegationLimit, match="4 deep"):
            await spawn(h, at)
        started = json.loads((await h.plane.sessions.start(as_session(h, at), agent="talker")).body)["session"]["id"]
        assert await spawn(h, started)


async def test_a_chain_of_requests_is_sixteen_long_whether_owned_or_started(database, tmp_path):
    """[M4]."""
    async with house(database, tmp_path) as h:
        at = await root(h)
        for step in range(16):
            make = h.plane.sessions.spawn if step % 2 else h.plane.sessions.start
            at = json.loads((await make(as_session(h, at), agent="talker")).body)["session"]["id"]
        for make in (h.plane.sessions.start, h.plane.sessions.spawn):
            with pytest.raises(DelegationLimit, match="16 long"):
                await make(as_session(h, at), agent="talker")


async def test_open_sessions_of_one_origin_are_bounded_and_closed_ones_make_room(database, tmp_path):
    """[M4]: counted over the whole causal tree, owned and started, exactly at the limit."""
    assert DelegationLimits() == DelegationLimits(owned_depth=4, causal_depth=16, open_sessions=1000)
    async with house(database, tmp_path) as h:
        h.plane.sessions.delegations.limits = DelegationLimits(open_sessions=4)
        top, elsewhere = await root(h), await root(h)
        child = await spawn(h, top)
        started = json.loads((await h.plane.sessions.start(as_session(h, child), agent="talker")).body)["session"]["id"]
        last = await spawn(h, started)
        for asks in (top, child, started, last):
            with pytest.raises(DelegationLimit, match="At most 4"):
                await spawn(h, asks)
        assert await spawn(h, elsewhere), "another origin has its own count"
        await control(h, "close", last)
        assert await spawn(h, top)


async def test_many_spawns_at_once_never_exceed_the_limit_together(database, tmp_path):
    """[M4], I3: they meet at the root of their causal chain, whoever asks."""
    async with house(database, tmp_path) as h:
        h.plane.sessions.delegations.limits = DelegationLimits(open_sessions=8)
        top = await root(h)
        child = await spawn(h, top)
        started = json.loads((await h.plane.sessions.start(as_session(h, child), agent="talker")).body)["session"]["id"]
        asks = [spawn(h, session) for session in (top, child, started) for _ in range(5)]
        results = await asyncio.gather(*asks, return_exceptions=True)
        made = [result for result in results if isinstance(result, str)]
        assert len(made) == 5 and all(isinstance(result, (str, DelegationLimit)) for result in results)
