"""PostgreSQL's files put back from an earlier copy, under running guests: no handler starts twice, and what is lost is told. I5, I11."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.scenarios.watching import count, heard, outcome, probe, words

from helmr.client import HelmrClient
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(60)


async def swap(installation: Installation, source: Path, target: Path) -> None:
    """While the database is away, put `source` where `target` is."""
    await installation.postgres.stop()
    await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
    copying = await asyncio.create_subprocess_exec("cp", "-a", str(source), str(target))
    assert await copying.wait() == 0
    await installation.postgres.start()


async def test_a_database_restored_from_its_files_starts_no_turn_again_and_says_what_it_lost(
    installation: Installation, client: HelmrClient, tmp_path: Path
) -> None:
    """I5, I11: what the copy has as running or queued ran meanwhile, and is told as `history_lost`; a Turn under way then is ended; the
    Sessions go on, and nobody told the control plane anything."""
    session, first = await probe(client, "until_told:")
    await heard(session, "turn.output")
    queued = [await session.enqueue(words("echo:x")) for _ in range(2)]
    data, copy = installation.postgres.data, tmp_path / "copy"
    await swap(installation, data, copy)
    await first.send(words("go"))
    for turn in (first, *queued):
        assert (await outcome(turn)).status == "completed"
    unknown = await session.enqueue(words("until_told:"))
    await heard(session, "turn.output", turn=unknown.id)
    await swap(installation, copy, data)
    last = await session.enqueue(words("echo:after"))
    assert (await outcome(last)).status == "completed"
    for turn in (first, *queued):
        state = await turn.get()
        assert (state.status, state.error.code) == ("interrupted", "history_lost")
    marks = installation.marks()
    assert [count(marks, "start", turn.id) for turn in (first, *queued, unknown, last)] == [1, 1, 1, 1, 1]
