"""PostgreSQL restarted and away: the API says 503, Turns go on, their results are delivered after. SPEC 11, [C3], UD-88."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.scenarios.watching import count, handled_once, heard, marked, more_starts, outcome, probe, settled_once, starts, timeline, words

from helmr.client import HelmrClient
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(90)


def postmaster(installation: Installation) -> int:
    return int((installation.postgres.data / "postmaster.pid").read_text().split()[0])


async def end_database(installation: Installation, number: signal.Signals) -> None:
    """Tell PostgreSQL to end (SIGINT: fast, SIGQUIT: immediate) and see it gone."""
    os.kill(postmaster(installation), number)
    await installation.postgres.stop()


@pytest.fixture(autouse=True)
async def database_is_back(installation: Installation) -> AsyncIterator[None]:
    yield
    await installation.postgres.start()


@pytest.mark.ud("UD-88")
async def test_a_turn_runs_and_ends_while_the_database_is_away_and_its_result_comes_after(
    installation: Installation, client: HelmrClient
) -> None:
    """One Turn ends without any database, one works on, one waits to have its output stored; meanwhile every answer is a retryable 503."""
    session, turn = await probe(client, "work:30")
    other, told = await probe(client, "until_told:")
    writing, ticking = await probe(client, "ticks:20")
    await asyncio.gather(*[heard(one, "turn.output") for one in (session, other, writing)])
    await end_database(installation, signal.SIGINT)
    headers = {"Authorization": f"Bearer {installation.key}"}
    async with aiohttp.ClientSession(installation.url, headers=headers) as http:
        for method, path, body in (
            ("GET", f"/v1/sessions/{session.id}", None),
            ("POST", f"/v1/sessions/{session.id}/turns", {"input": words("echo:x")}),
            ("POST", "/v1/sessions", {"agent": "probe"}),
        ):
            async with asyncio.timeout(15), http.request(method, path, json=body) as reply:
                said = await reply.json(content_type=None)
                assert (reply.status, said["code"], said["retryable"]) == (503, "database_unavailable", True)
        async with http.get("/readyz") as reply:
            assert reply.status == 503
    before = count(installation.marks(), "tick", told.id)
    await marked(installation, lambda marks: count(marks, "end", turn.id) == 1 and count(marks, "tick", told.id) > before + 40)
    await installation.postgres.start()
    assert (await outcome(turn)).status == "completed"
    assert (await outcome(ticking)).status == "completed"
    outputs = [event.data[0]["text"] for event in await timeline(writing) if event.kind == "turn.output"]
    assert "".join(outputs) == "".join(f"{number} " for number in range(20))
    await told.send(words("back"))
    assert (await outcome(told)).result["said"] == "back"
    for one in (session, other, writing):
        handled_once(installation, await settled_once(one))
        await one.cancel()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
async def test_a_restart_of_the_database_under_load_loses_no_accepted_turn(
    installation: Installation, client: HelmrClient, number: signal.Signals
) -> None:
    """Eight Sessions of five Turns; clients repeat what was refused, with the same keys."""

    async def converse(place: int) -> object:
        session, first = await probe(client, "ticks:3", idempotency_key=f"{number}-{place}")
        turns = [first, *[await session.enqueue(words(f"echo:{n}"), idempotency_key=f"{number}-{place}-{n}") for n in range(4)]]
        assert [(await outcome(turn, 60)).status for turn in turns] == ["completed"] * 5
        return session

    known = starts(installation)
    async with asyncio.TaskGroup() as group:
        conversations = [group.create_task(converse(place)) for place in range(8)]
        await more_starts(installation, known, 10)
        await end_database(installation, number)
        await installation.postgres.start()
    for conversation in conversations:
        statuses = await settled_once(conversation.result())
        assert len(statuses) == 5
        handled_once(installation, statuses)
        await conversation.result().cancel()


async def test_an_interrupt_repeated_over_an_outage_holds_once(installation: Installation, client: HelmrClient) -> None:
    """[S4]: the client's own retries carry one key; the running Turn stops when the database is back."""
    session, turn = await probe(client, "sleep:")
    await heard(session, "turn.output")
    await end_database(installation, signal.SIGQUIT)
    interrupting = asyncio.ensure_future(session.interrupt())
    await installation.postgres.start()
    hold = await interrupting
    assert (await outcome(turn)).status == "interrupted"
    assert [held.id for held in (await session.get()).holds] == [hold.hold_id]
    await session.cancel()
