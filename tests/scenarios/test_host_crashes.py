"""kill -9 of the worker, of hostd, of everything but the guests and PostgreSQL: guests go on and are attached again. [C3], I5, I6."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from tests.scenarios.watching import count, handled_once, heard, marked, more_starts, outcome, probe, settled_once, starts, timeline, words

from helmr.client import HelmrClient
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(90)


async def kill_worker(installation: Installation) -> None:
    installation.kill_worker()
    installation.start_worker()


async def kill_hostd(installation: Installation) -> None:
    await installation.kill_hostd()


async def kill_both(installation: Installation) -> None:
    installation.kill_worker()
    await installation.kill_hostd()
    installation.start_worker()


async def kill_all(installation: Installation) -> None:
    installation.kill_server()
    installation.kill_worker()
    await installation.kill_hostd()
    await installation.start_server()
    installation.start_worker()


KILLS = pytest.mark.parametrize("kill", [kill_worker, kill_hostd, kill_both, kill_all])


@KILLS
async def test_a_running_turn_runs_on_and_its_process_stays(installation: Installation, client: HelmrClient, kill) -> None:
    """The handler ticks on while they are away, and the same process takes the next Turn."""
    session, turn = await probe(client, "until_told:")
    await heard(session, "turn.output")
    before = count(installation.marks(), "tick", turn.id)
    await kill(installation)
    await marked(installation, lambda marks: count(marks, "tick", turn.id) > before + 5)
    await turn.send(words("enough"))
    ended = await outcome(turn)
    assert (ended.status, ended.result["said"]) == ("completed", "enough")
    following = await outcome(await session.enqueue(words("echo:next")))
    assert (following.result["pid"], following.result["kind"]) == (ended.result["pid"], "initial")
    events = await timeline(session)
    assert [event.kind for event in events].count("session.process_started") == 1
    handled_once(installation, await settled_once(session))
    await session.cancel()


@KILLS
async def test_what_a_turn_says_while_they_are_away_is_kept_whole_and_in_order(
    installation: Installation, client: HelmrClient, kill
) -> None:
    """[E5]: each output once, in order."""
    session, turn = await probe(client, "ticks:40")
    await marked(installation, lambda marks: count(marks, "tick", turn.id) >= 3)
    await kill(installation)
    assert (await outcome(turn)).status == "completed"
    outputs = [event.data[0]["text"] for event in await timeline(session) if event.kind == "turn.output"]
    assert "".join(outputs) == "".join(f"{number} " for number in range(40))
    handled_once(installation, await settled_once(session))
    await session.cancel()


@KILLS
async def test_a_kill_during_init_lets_init_finish_once(installation: Installation, client: HelmrClient, kill) -> None:
    """[S9]: it goes on; nothing starts it a second time."""
    first, turn = await probe(client, "init_slowly:")
    assert (await outcome(turn)).status == "completed"
    place = (await first.get()).computer_id
    known = len([mark for mark in installation.marks() if mark.kind == "init"])
    session, waiting = await probe(client, "echo:after init", computer={"id": place})
    await marked(installation, lambda marks: sum(mark.kind == "init" for mark in marks) == known + 1)
    await kill(installation)
    release = await first.enqueue(words("init_freely:"))
    assert (await outcome(release)).status == "completed"
    ended = await outcome(waiting)
    assert (ended.status, ended.result["kind"]) == ("completed", "initial")
    assert sum(mark.kind == "init" for mark in installation.marks()) == known + 1
    handled_once(installation, await settled_once(session))
    await asyncio.gather(first.cancel(), session.cancel())


@KILLS
async def test_a_kill_between_turns_changes_nothing(installation: Installation, client: HelmrClient, kill) -> None:
    session, turn = await probe(client, "echo:one")
    pid = (await outcome(turn)).result["pid"]
    await kill(installation)
    again = await outcome(await session.enqueue(words("echo:two")))
    assert (again.status, again.result["pid"]) == ("completed", pid)
    await session.cancel()


@pytest.mark.ud("UD-04")
@pytest.mark.ud("UD-16")
async def test_kills_under_load_settle_nothing_twice(installation: Installation, client: HelmrClient) -> None:
    """Eight Sessions with five Turns each, enqueued at once; worker, hostd and control plane killed one after the other."""

    async def converse(number: int) -> object:
        session, first = await probe(client, f"ticks:{3 + number % 3}", idempotency_key=f"hosts-{number}")
        turns = [first, *[await session.enqueue(words(f"echo:{n}"), idempotency_key=f"hosts-{number}-{n}") for n in range(4)]]
        ends = [await outcome(turn, 60) for turn in turns]
        assert [end.status for end in ends] == ["completed"] * 5
        assert [end.result["said"] for end in ends[1:]] == ["0", "1", "2", "3"]
        assert len({turn.id for turn in turns}) == 5
        return session

    known = starts(installation)
    async with asyncio.TaskGroup() as group:
        conversations = [group.create_task(converse(number)) for number in range(8)]
        for wanted, kill in ((4, kill_worker), (12, kill_hostd), (20, kill_both)):
            await more_starts(installation, known, wanted)
            await kill(installation)
    for conversation in conversations:
        handled_once(installation, await settled_once(conversation.result()))
        await conversation.result().cancel()


@pytest.mark.ud("UD-16")
async def test_a_worker_told_to_end_lets_go_and_its_successor_has_the_running_turn(installation: Installation, client: HelmrClient) -> None:
    """A rolling restart: SIGTERM, and the drain limit ends before the Turn does."""
    session, turn = await probe(client, "until_told:")
    await heard(session, "turn.output")
    old = installation.worker
    assert old is not None
    old.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(old.wait, 20) == 0
    before = count(installation.marks(), "tick", turn.id)
    installation.start_worker()
    await marked(installation, lambda marks: count(marks, "tick", turn.id) > before)
    await turn.send(words("on"))
    assert (await outcome(turn)).result["said"] == "on"
    await session.cancel()


@pytest.mark.ud("UD-32")
async def test_the_end_of_a_computer_ends_nothing_else(installation: Installation, client: HelmrClient) -> None:
    """kill -9 of a supervisor: its Turn is `interrupted`, `process_lost`; another Computer, hostd and the worker don't notice."""
    session, turn = await probe(client, "until_told:")
    other, untouched = await probe(client, "until_told:")
    await asyncio.gather(heard(session, "turn.output"), heard(other, "turn.output"))
    hostd, worker = installation.hostd_pid(), installation.worker
    tree = await installation.computer((await session.get()).computer_id)
    os.kill(tree.processes[0].pid, signal.SIGKILL)
    ended = await outcome(turn)
    assert (ended.status, ended.error.code) == ("interrupted", "process_lost")
    assert not any(process.is_alive() for process in tree.processes)
    again = await outcome(await session.enqueue(words("echo:again")))
    assert (again.status, again.result["kind"], again.result["reason"]) == ("completed", "reconstructed", "process_lost")
    await untouched.send(words("well"))
    assert (await outcome(untouched)).result["said"] == "well"
    assert worker is not None and worker.poll() is None and installation.hostd_pid() == hostd
    handled_once(installation, await settled_once(session))
    await asyncio.gather(session.cancel(), other.cancel())
