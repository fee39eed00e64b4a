"""What users of comparable systems complain about, on real processes. The marks name the entries (tests/demands.py)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

import pytest
from tests.scenarios.watching import heard, outcome, pid_of, probe, timeline, words

from helmr.client import HelmrClient
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(90)


async def helmr(installation: Installation, *arguments: str) -> Any:
    """Run the command; its one JSON object, or its lines of them."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "helmr.cli", *arguments],
        env=os.environ | installation.environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    found = [json.loads(line) for line in out.decode().splitlines()]
    return found[0] if "--json" in arguments else found


@pytest.mark.ud("UD-59")
async def test_without_any_worker_every_session_is_read_whole(installation: Installation, client: HelmrClient) -> None:
    """Idle, running, closed, and never on a Computer: reading needs none, in the client and on the command line."""
    idle, done = await probe(client, "echo:kept")
    assert (await outcome(done)).status == "completed"
    running, ticking = await probe(client, "until_told:")
    await heard(running, "turn.output")
    closed, last = await probe(client, "echo:closed")
    assert (await outcome(last)).status == "completed"
    await closed.close()
    await heard(closed, "session.closed")
    fresh = (await client.sessions.create(agent="probe")).session
    installation.kill_worker()
    await installation.kill_hostd()
    async with asyncio.timeout(30):
        for session, turns in ((idle, [done]), (running, [ticking]), (closed, [last]), (fresh, [])):
            shape = await session.get()
            assert shape.id == session.id
            assert [turn.id for turn in (await session.turns.list()).items] == [turn.id for turn in turns]
            seen = [event.kind for event in await timeline(session)]
            assert seen.count("turn.output") == len(turns)
            assert (await session.explain()).sentence
        assert (await helmr(installation, "session", "get", closed.id, "--json"))["status"] == "closed"
        lines = await helmr(installation, "session", "events", closed.id, "--jsonl")
        assert [line["kind"] for line in lines] == [event.kind for event in await timeline(closed)]
        assert (await helmr(installation, "session", "turn", "get", idle.id, done.id, "--json"))["response"] == words("kept")
        waiting = await idle.enqueue(words("echo:later"))
    installation.start_worker()
    assert (await outcome(waiting)).status == "completed"
    await ticking.send(words("well"))
    assert (await outcome(ticking)).result["said"] == "well"
    await asyncio.gather(*(session.cancel() for session in (idle, running, fresh)))


@pytest.mark.ud("UD-32")
@pytest.mark.parametrize("how", ["group", "session"])
async def test_an_agent_that_kills_all_it_can_reach_reaches_nothing_outside(
    installation: Installation, client: HelmrClient, how: str
) -> None:
    """[C2], [C3]: process groups of its parents, and `kill -9 -1`; its own Turn may fall, nothing of another Computer or of the host."""
    other, untouched = await probe(client, "until_told:")
    await heard(other, "turn.output")
    worker, hostd = installation.worker, installation.hostd_pid()
    assert worker is not None
    session, turn = await probe(client, f"games:{how}")
    ended = await outcome(turn)
    assert ended.status == "completed" or (ended.status, ended.error.code) == ("interrupted", "process_lost")
    again = await outcome(await session.enqueue(words("echo:again")))
    assert (again.status, again.result["said"]) == ("completed", "again")
    await untouched.send(words("well"))
    assert (await outcome(untouched)).result["said"] == "well"
    assert worker.poll() is None and installation.hostd_pid() == hostd
    assert "session.process_failed" not in {event.kind for event in await timeline(other)}
    await asyncio.gather(session.cancel(), other.cancel())


@pytest.mark.ud("UD-15")
@pytest.mark.parametrize("seconds", [2, pytest.param(130, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
async def test_a_computer_whose_processors_are_all_busy_ends_no_turn(installation: Installation, client: HelmrClient, seconds: int) -> None:
    """The soak goes on for more than two leases."""
    session, turn = await probe(client, f"spin:{seconds}")
    ended = await outcome(turn, 60 + seconds)
    assert (ended.status, ended.result["said"]) == ("completed", str(seconds))
    kinds = [event.kind for event in await timeline(session)]
    assert kinds.count("turn.output") > 1 and "session.process_failed" not in kinds
    await session.cancel()


@pytest.mark.ud("UD-101")
async def test_what_a_tool_keeps_in_its_home_is_there_after_its_process_and_its_computer_were_killed(
    installation: Installation, client: HelmrClient
) -> None:
    """[S14], [C5]: the home is on the durable disk; the Agent is told that it was reconstructed, and can resume what it kept there."""
    session, turn = await probe(client, "home:first")
    first = await outcome(turn)
    assert (first.result["said"], first.result["kind"]) == ([], "initial")
    os.kill(await pid_of(installation, session), signal.SIGKILL)
    await heard(session, "session.process_failed")
    second = await outcome(await session.enqueue(words("home:second")))
    assert (second.result["said"], second.result["kind"]) == (["first"], "reconstructed")
    supervisor = (await installation.computer((await session.get()).computer_id)).processes[0]
    after = (await timeline(session))[-1].sequence
    os.kill(supervisor.pid, signal.SIGKILL)
    await heard(session, "session.process_failed", after=after)
    third = await outcome(await session.enqueue(words("home:third")))
    assert (third.result["said"], third.result["kind"]) == (["first", "second"], "reconstructed")
    await session.cancel()
