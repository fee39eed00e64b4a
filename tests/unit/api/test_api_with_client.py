"""The API and our own client, over a real connection: both sides of the wire mean the same. SPEC 11, 12."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from tests.unit.api.api_fakes import (
    BLOB,
    DEPLOYMENT,
    DIGEST,
    FOREIGN_SESSION,
    HOLD,
    KEY,
    READER_KEY,
    SESSION,
    TIME,
    TURN,
    Stored,
    World,
    stored,
)
from tests.unit.api.api_server import Served

from helmr.client import CompletedTurn, HelmrClient, RetryPolicy, TurnWaitTimeout
from helmr.protocol import errors
from helmr.protocol.content import text
from helmr.protocol.manifest import Manifest

pytestmark = pytest.mark.anyio

Bounded = Callable[[], AbstractAsyncContextManager[object]]


@pytest.fixture
async def helmr(served: Served) -> AsyncIterator[HelmrClient]:
    async with HelmrClient(served.url, KEY, retry=RetryPolicy(first=0.001, longest=0.01)) as made:
        yield made


async def test_a_session_is_created_read_listed_and_explained(helmr: HelmrClient, world: World) -> None:
    receipt = await helmr.sessions.create(agent="echo", input=[text("hi")], key="k", labels={"team": "blue"}, idempotency_key="once")
    assert (receipt.session.id, receipt.turn.id) == (SESSION, TURN)
    asked = world.asked("sessions_create")[1]
    assert (asked["input"], asked["key"], asked["labels"], asked["idempotency_key"]) == ([text("hi")], "k", {"team": "blue"}, "once")
    assert (await receipt.session.get()).labels == {"team": "blue"}
    assert (await receipt.session.explain()).state == "idle"
    page = await helmr.sessions.list(status=["open", "closing"], parent_session_id=SESSION, limit=7)
    assert (page.items[0].id, page.next_cursor) == (SESSION, "next")
    assert world.asked("sessions_list")[1]["status"] == ("open", "closing")


async def test_turns_and_controls_of_a_session(helmr: HelmrClient, world: World) -> None:
    session = helmr.sessions.ref(SESSION)
    turn = await session.enqueue([text("again")])
    assert turn.id == TURN
    assert (await turn.get()).status == "running"
    assert (await turn.send([text("more")])).status == "accepted"
    assert (await turn.interrupt()).turn_id == TURN
    assert (await session.turns.list()).items[0].result == {"big": 2**70}
    assert (await session.interrupt()).hold_id == HOLD
    assert (await session.resume(hold_id=HOLD)).hold_id == HOLD
    assert (await session.close()).status == "closing"
    assert (await session.cancel()).status == "closed"
    assert (await session.delete_data(idempotency_key="once")).payload_expired_at == TIME
    assert world.asked("retention_delete_data")[0][-1] == "once"


async def test_a_wait_polls_long_and_ends_with_the_turn(helmr: HelmrClient, world: World, bounded: Bounded) -> None:
    turn = helmr.sessions.ref(SESSION).turns.ref(TURN)
    assert isinstance(await turn.wait(timeout="20ms"), TurnWaitTimeout)
    async with bounded(), asyncio.TaskGroup() as group:
        waiting = group.create_task(turn.wait())
        world.waiting.clear()
        await world.waiting.wait()
        world.settled.set()
    assert isinstance(waiting.result(), CompletedTurn)


async def test_a_timeline_is_followed_over_dropped_connections_without_loss(helmr: HelmrClient, world: World, bounded: Bounded) -> None:
    """[E4]: each connection gives three events and breaks; the reader sees each once."""
    starts: list[int] = []

    async def batches(after: int) -> AsyncIterator[Sequence[Stored]]:
        starts.append(after)
        yield [stored(sequence) for sequence in range(after + 1, min(after + 3, 7) + 1)]
        if after + 3 < 7:
            raise errors.DatabaseUnavailable()

    world.batches = batches
    async with bounded(), helmr.sessions.ref(SESSION).events.stream() as stream:
        seen = [event.sequence async for event in stream]
    assert seen == list(range(1, 8))
    assert starts == [0, 3, 6]


async def test_events_agents_and_capabilities_are_read(helmr: HelmrClient) -> None:
    assert (await helmr.sessions.ref(SESSION).events.list()).records[0].sequence == 1
    assert (await helmr.agents.get("echo")).input_kind == "text"
    assert (await helmr.agents.list(deployment_id=DEPLOYMENT)).items[0].agent == "echo"
    assert (await helmr.capabilities()).api == "v1"


async def test_a_project_is_published(helmr: HelmrClient, world: World) -> None:
    assert await helmr.deployments.missing_blobs([DIGEST]) == [DIGEST]
    await helmr.deployments.put_blob(DIGEST, BLOB)
    assert await helmr.deployments.missing_blobs([DIGEST]) == []
    made = await helmr.deployments.create_deployment(Manifest(protocol=1, bundle=DIGEST, agents=(), templates=()))
    assert made.id == DEPLOYMENT
    assert (await helmr.deployments.get(DEPLOYMENT)).status == "deployed"
    assert (await helmr.deployments.current()).current
    assert (await helmr.deployments.list()).items[0].digest == DIGEST
    assert (await helmr.deployments.promote(DEPLOYMENT)).id == DEPLOYMENT
    assert [piece async for piece in helmr.deployments.log(DEPLOYMENT)] == ["Step 1: one\ntwo", "done\n"]


async def test_refusals_come_back_as_their_own_class_with_their_facts(served: Served, helmr: HelmrClient, world: World) -> None:
    with pytest.raises(errors.SessionNotFound):
        await helmr.sessions.get(FOREIGN_SESSION)
    world.fails["sessions_create"] = errors.SessionKeyConflict(session_id=SESSION)
    with pytest.raises(errors.SessionKeyConflict) as conflict:
        await helmr.sessions.create(agent="echo", key="k")
    assert conflict.value.facts["session_id"] == SESSION
    async with HelmrClient(served.url, READER_KEY) as poor:
        with pytest.raises(errors.Forbidden):
            await poor.sessions.get(SESSION)
