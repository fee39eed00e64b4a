"""Two control planes on one database, the worker linked to one of them: each serves all, and either may die. DESIGN 1, I6, I8."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.scenarios.forwarding import Forwarder
from tests.scenarios.installed import installed
from tests.scenarios.watching import count, handled_once, heard, marked, outcome, probe, settled_once, words

from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(90)
HOLDER, OTHER = 0, 1


@dataclass(frozen=True, slots=True)
class Pair:
    """Two planes; the worker reaches the one that the forwarder points to."""

    installation: Installation
    forwarder: Forwarder


@pytest.fixture(scope="module")
async def pair(anyio_backend: str) -> AsyncIterator[Pair]:
    installation = installed(Path(__file__).parent / "project", planes=2)
    async with Forwarder(installation.planes[HOLDER].port) as forwarder:
        installation.worker_url = forwarder.url
        async with installation:
            yield Pair(installation, forwarder)


async def test_the_plane_without_the_link_creates_enqueues_waits_streams_and_interrupts(pair: Pair) -> None:
    """Everything by the other one, beginning with a Computer that must be started by the holder."""
    async with pair.installation.client(OTHER) as client:
        session, turn = await probe(client, "echo:from afar")
        assert (await outcome(turn)).result["said"] == "from afar"
        told = await session.enqueue(words("until_told:"))
        await heard(session, "turn.output", turn=told.id)
        await told.send(words("heard"))
        assert (await outcome(told)).result["said"] == "heard"
        stopped = await session.enqueue(words("sleep:"))
        await heard(session, "turn.output", turn=stopped.id)
        hold = await session.interrupt()
        assert (await outcome(stopped)).status == "interrupted"
        waiting = await session.enqueue(words("echo:later"))
        await session.resume(hold_id=hold.hold_id)
        assert (await outcome(waiting)).status == "completed"
        await session.close()
        await heard(session, "session.closed")
        handled_once(pair.installation, await settled_once(session))


async def test_both_planes_see_one_timeline_as_it_grows(pair: Pair) -> None:
    """I2: the same events in the same order, followed at each."""
    async with pair.installation.client(HOLDER) as near, pair.installation.client(OTHER) as far:
        session, turn = await probe(near, "ticks:10")

        async def follow(ref) -> list[tuple[int, str]]:
            found: list[tuple[int, str]] = []
            async with aclosing(ref.events.stream()) as stream:
                async for event in stream:
                    found.append((event.sequence, event.kind))
                    if event.kind == "turn.completed":
                        return found
            raise AssertionError("the stream ended")

        async with asyncio.timeout(20):
            one, two = await asyncio.gather(follow(session), follow(far.sessions.ref(session.id)))
        assert one == two and [sequence for sequence, _ in one] == list(range(1, len(one) + 1))
        assert (await far.sessions.ref(session.id).turns.ref(turn.id).wait()).status == "completed"
        await session.cancel()


async def test_the_same_key_at_both_planes_at_once_admits_once(pair: Pair) -> None:
    """[S4]."""
    async with pair.installation.client(HOLDER) as near, pair.installation.client(OTHER) as far:
        session, turn = await probe(near, "echo:first")
        await outcome(turn)
        refs = [near.sessions.ref(session.id), far.sessions.ref(session.id)]
        turns = await asyncio.gather(*[ref.enqueue(words("echo:x"), idempotency_key="both") for ref in refs * 4])
        assert len({turn.id for turn in turns}) == 1
        assert (await outcome(turns[0])).status == "completed"
        assert len(await settled_once(session)) == 2
        await session.cancel()


async def test_when_the_holder_dies_the_worker_links_to_the_other_and_the_turn_goes_on(pair: Pair) -> None:
    """The last test of this pair: afterwards the first one comes back, without the link, and serves too."""
    installation = pair.installation
    async with installation.client(OTHER) as client:
        session, turn = await probe(client, "until_told:")
        await heard(session, "turn.output")
        pair.forwarder.port = installation.planes[OTHER].port
        installation.kill_server(plane=HOLDER)
        before = count(installation.marks(), "tick", turn.id)
        await marked(installation, lambda marks: count(marks, "tick", turn.id) > before)
        following = await session.enqueue(words("echo:by the other"))
        await turn.send(words("on"))
        assert (await outcome(turn)).result["said"] == "on"
        assert (await outcome(following)).status == "completed"
    await installation.start_server(plane=HOLDER)
    async with installation.client(HOLDER) as client:
        again = client.sessions.ref(session.id)
        assert (await outcome(await again.enqueue(words("echo:back")))).status == "completed"
        handled_once(installation, await settled_once(again))
        await again.cancel()
