"""kill -9 of the control plane before and after each commit of a Turn's life, then what is true from outside. I1, I2, I5, [S4], [S11]."""

from __future__ import annotations

import asyncio

import pytest
from tests.scenarios.watching import handled_once, heard, more_starts, outcome, probe, settled_once, starts, words

from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(300)
RETURN_SECONDS = 120.0
"""How long anything may take while the control plane dies and returns on the way: it starts up to five times, on a busy machine too."""
LIFE = (
    "create",
    "place",
    "init.done",
    "flush.append",
    "flush.settle",
    "flush.admit",
    "messages.open",
    "send",
    "message.delivered",
    "interrupt_session",
    "resume",
    "flush.claim",
    "close",
    "cancel",
)
"""The commits of two Sessions' lives, by the names of their fault points, in the order in which they come."""


@pytest.mark.ud("UD-11")
@pytest.mark.ud("UD-19")
@pytest.mark.ud("UD-89")
@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
async def test_a_kill_at_every_commit_loses_nothing_and_repeats_nothing(installation: Installation, moment: str) -> None:
    """One life, the control plane killed at each commit in turn; its client repeats what had no answer, with the same keys."""
    installation.kill_server()
    await installation.start_server(fault=f"{moment}:{LIFE[0]}=kill")
    died: list[str] = []

    async def die_and_return() -> None:
        for commit, following in zip(LIFE, (*LIFE[1:], ""), strict=True):
            await installation.server_died()
            died.append(commit)
            print("killed at", moment, commit)
            await installation.start_server(fault=f"{moment}:{following}=kill" if following else "")

    async with installation.client() as client, asyncio.TaskGroup() as group:
        dying = group.create_task(die_and_return())
        created = await client.sessions.create(agent="probe", input=words("echo:one"), idempotency_key=f"{moment}-create")
        session = created.session
        assert (await outcome(created.turn, RETURN_SECONDS)).result["said"] == "one"
        told = await session.enqueue(words("until_told:"), idempotency_key=f"{moment}-told")
        await heard(session, "turn.output", turn=told.id, seconds=RETURN_SECONDS)
        message = await told.send(words("go on"), idempotency_key=f"{moment}-send")
        assert (await outcome(told, RETURN_SECONDS)).result["said"] == "go on"
        stopped = await session.enqueue(words("sleep:"), idempotency_key=f"{moment}-sleep")
        await heard(session, "turn.output", turn=stopped.id, seconds=RETURN_SECONDS)
        held = await session.interrupt(idempotency_key=f"{moment}-interrupt")
        waiting = await session.enqueue(words("echo:two"), idempotency_key=f"{moment}-two")
        assert (await outcome(stopped, RETURN_SECONDS)).status == "interrupted"
        await session.resume(hold_id=held.hold_id, idempotency_key=f"{moment}-resume")
        assert (await outcome(waiting, RETURN_SECONDS)).result["said"] == "two"
        await session.close(idempotency_key=f"{moment}-close")
        await heard(session, "session.closed", seconds=RETURN_SECONDS)
        other, running = await probe(client, "sleep:", idempotency_key=f"{moment}-other")
        await heard(other, "turn.output", seconds=RETURN_SECONDS)
        await other.cancel(idempotency_key=f"{moment}-cancel")
        assert (await outcome(running, RETURN_SECONDS)).status == "cancelled"
        await dying
        assert tuple(died) == LIFE
        statuses = await settled_once(session)
        assert list(statuses.values()) == ["completed", "completed", "interrupted", "completed"]
        handled_once(installation, statuses)
        handled_once(installation, await settled_once(other))
        again = await client.sessions.create(agent="probe", input=words("echo:one"), idempotency_key=f"{moment}-create")
        assert again.replayed and again.session.id == session.id and again.turn.id == created.turn.id
        assert (await session.enqueue(words("echo:two"), idempotency_key=f"{moment}-two")).id == waiting.id
        assert (await told.send(words("go on"), idempotency_key=f"{moment}-send")).id == message.id
        assert (await session.interrupt(idempotency_key=f"{moment}-interrupt")).hold_id == held.hold_id


async def test_a_kill_under_load_leaves_every_accepted_turn_with_one_end_and_one_start(installation: Installation) -> None:
    """Sixteen Sessions on two Computers, five Turns each, the control plane killed twice on the way (W5 in small)."""
    async with installation.client() as client:
        first, turn = await probe(client, "echo:warm")
        second, other = await probe(client, "echo:warm")
        await asyncio.gather(outcome(turn), outcome(other))
        places = [(await session.get()).computer_id for session in (first, second)]

        async def converse(number: int) -> object:
            session, turn = await probe(client, "ticks:2", computer={"id": places[number % 2]})
            turns = [turn] + [await session.enqueue(words("ticks:1"), idempotency_key=f"load-{number}-{n}") for n in range(4)]
            for turn in turns:
                assert (await outcome(turn, 60)).status == "completed"
            return session

        known = starts(installation)
        async with asyncio.TaskGroup() as group:
            conversations = [group.create_task(converse(number)) for number in range(16)]
            for kills in (8, 40):
                await more_starts(installation, known, kills)
                installation.kill_server()
                await installation.start_server()
        for conversation in conversations:
            handled_once(installation, await settled_once(conversation.result()))
        await asyncio.gather(first.cancel(), second.cancel())
