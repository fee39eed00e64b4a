"""Two workers are restarted one after the other under load: nothing is settled twice, nothing is lost. UD-16; [C3], [C6], I5."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from tests.scenarios.watching import count, heard, outcome, probe, words

from helmr.client import HelmrClient
from helmr.dev.host import end_hostd
from helmr.host.worker import HostdProcess
from helmr.testing.installation import DRAIN, Installation, Process

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(os.geteuid() != 0, reason="bubblewrap with all it can do needs root")]
SESSIONS = 2
QUEUED = 2


class Second:
    """One more worker, with a hostd of its own."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._hostd = HostdProcess(installation.folder / "second-hostd", "bubblewrap")
        self.process: Process | None = None

    def start(self) -> None:
        state, hostd = str(self._installation.folder / "second-worker"), str(self._hostd.folder)
        arguments = ["--name", "second", "--state", state, "--hostd-state", hostd, "--drain", DRAIN, "--cpu", "1000"]
        self.process = self._installation._spawn("worker", *arguments, log="second-worker")

    async def end(self) -> None:
        """Nothing is placed on it any more, whatever became of it: the installation is shared."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        connection = await asyncpg.connect(self._installation.dsn)
        await connection.execute("UPDATE workers SET lease_until = clock_timestamp() - interval '1 hour' WHERE name = 'second'")
        await connection.close()
        await end_hostd(self._hostd)

    @property
    def marks(self) -> list[Path]:
        return sorted((self._hostd.folder / "computers").glob("*/disk/upper/workspace/marks"))


@pytest.fixture
async def second(installation: Installation) -> AsyncIterator[Second]:
    made = Second(installation)
    try:
        made.start()
        await connected(installation.dsn, "second")
        yield made
    finally:
        await made.end()


async def connected(dsn: str, worker: str) -> None:
    """A control plane has taken the worker in."""
    connection = await asyncpg.connect(dsn)
    try:
        while not await connection.fetchval("SELECT count(*) FROM workers WHERE name = $1 AND lease_until > clock_timestamp()", worker):
            await asyncio.sleep(0.05)
    finally:
        await connection.close()


async def restarted(process: Process | None) -> None:
    """SIGTERM, and wait for its end."""
    assert process is not None
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 30) == 0


async def both_at_work(client: HelmrClient, second: Second, made: list[tuple[object, object]]) -> None:
    """Make Sessions with a Turn that runs until it is told, and others queued behind it, until both hosts have some."""
    while len(made) < SESSIONS or not second.marks:
        session, first = await probe(client, "until_told:")
        await heard(session, "turn.output")
        made.append((session, first))
        assert len(made) < 5 * SESSIONS, "the second worker takes nothing"


@pytest.mark.ud("UD-16")
async def test_every_turn_ends_once_over_a_rolling_restart(installation: Installation, client: HelmrClient, second: Second) -> None:
    """What runs beyond the drain's limit goes on meanwhile, what is queued waits for its worker, what is idle sleeps and wakes."""
    idle, warming = await probe(client, "echo:warm")
    before = (await outcome(warming)).result["pid"]
    made: list[tuple[object, object]] = []
    await both_at_work(client, second, made)
    turns = [first for _, first in made]
    for session, _ in made:
        turns += [await session.enqueue(words(f"echo:{number}")) for number in range(QUEUED)]

    await restarted(installation.worker)
    installation.start_worker()
    await restarted(second.process)
    second.start()

    for _, first in made:
        await first.send(words("go"))
    turns.append(await idle.enqueue(words("echo:still here")))
    ends = [await outcome(turn) for turn in turns]
    assert {end.status for end in ends} == {"completed"}
    assert ends[-1].result["pid"] == before, "it slept while its worker was away, and went on"
    marks = installation.marks()
    lines = [line.split() for path in second.marks for line in path.read_text().splitlines()]
    for turn in turns:
        here = count(marks, "start", turn.id), sum(line[:2] == ["start", turn.id] for line in lines)
        assert sum(here) == 1, f"{turn.id} was started {here} times"
    assert lines and all("Draining: " in installation.log(name, 1 << 20) for name in ("worker", "second-worker"))
