"""After an installation has ended nothing of it remains: no process, mount, cgroup, socket or folder. [C9], [D4]."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.scenarios.installed import installed
from tests.scenarios.watching import heard, outcome, probe

from helmr.testing.host_processes import cgroups_naming, mounts_naming, naming

pytestmark = pytest.mark.timeout(90)
PROJECT = Path(__file__).parent / "project"


@pytest.mark.parametrize("how", ["in order", "after everything was killed"])
async def test_an_ended_installation_leaves_nothing(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a running Turn, an idle Session and children of a handler on two Computers; killed hosts are cleaned up by the next hostd."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with installed(PROJECT) as installation, installation.client() as client:
        running, _ = await probe(client, "children:")
        idle, other = await probe(client, "echo:done")
        await heard(running, "turn.output")
        assert (await outcome(other)).status == "completed"
        computers = [(await session.get()).computer_id for session in (running, idle)]
        trees = [await installation.computer(computer) for computer in computers]
        assert all(naming([computer]) for computer in computers)
        assert mounts_naming(str(installation.folder)) or any(cgroups_naming(computer) for computer in computers)
        if how == "after everything was killed":
            installation.kill_worker()
            installation.kill_server()
            await installation.kill_hostd()
    assert naming([str(installation.folder), *computers]) == []
    assert [process for tree in trees for process in tree.processes if process.is_alive()] == []
    assert mounts_naming(str(installation.folder)) == []
    assert [path for computer in computers for path in cgroups_naming(computer)] == []
    assert not await asyncio.to_thread(installation.folder.exists)
    assert list(tmp_path.iterdir()) == []
