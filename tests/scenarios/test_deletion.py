"""Computers that go: their processes end, their files leave the disk, whatever is killed meanwhile. [C1], [C9]"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.scenarios.conftest import PROJECT
from tests.scenarios.installed import installed
from tests.scenarios.watching import heard, outcome, probe

from helmr.client import HelmrClient
from helmr.protocol.errors import ComputerBusy
from helmr.testing.host_processes import cgroups_naming, mounts_naming, naming
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(120)


def left_of(installation: Installation, computer: str) -> list[str]:
    """Whatever this host has of a Computer: folders, processes, mounts, cgroups."""
    folders = [str(path) for path in (installation.folder / "hostd" / "computers").iterdir() if computer in path.name]
    return [*folders, *naming([computer]), *mounts_naming(computer), *cgroups_naming(computer)]


async def until(client: HelmrClient, computer: str, **wanted: str) -> None:
    """Return once it is as wanted; a Computer without open Sessions has no timeline to wait on."""
    async with asyncio.timeout(60):
        while True:
            found: Any = await client.computers.get(computer)
            if {name: getattr(found, name) for name in wanted} == wanted:
                return
            await asyncio.sleep(0.05)


async def test_a_deleted_computer_leaves_nothing_on_its_host_running_asleep_or_while_its_worker_is_away() -> None:
    """The one that stays keeps its process."""
    async with installed(PROJECT) as installation, installation.client() as client:
        kept, first = await probe(client, "echo:kept")
        before = await outcome(first, 60)
        stays = (await kept.get()).computer_id

        # Daemons of a Session that was cancelled just now.
        busy, _ = await probe(client, "children:")
        await heard(busy, "turn.output")
        running = (await busy.get()).computer_id
        tree = await installation.computer(running)
        with pytest.raises(ComputerBusy):
            await client.computers.delete(running)
        assert left_of(installation, running)
        await busy.cancel()
        await client.computers.delete(running)
        await until(client, running, status="deleted")
        assert left_of(installation, running) == []
        assert [process for process in tree.processes if process.is_alive()] == []
        await heard(busy, "session.process_stopped")

        # One that sleeps.
        asleep = (await client.computers.create("probe", key="sleeper")).id
        await client.computers.wake(asleep)
        await until(client, asleep, residency="running")
        await client.computers.hibernate(asleep)
        await until(client, asleep, residency="hibernated")
        assert left_of(installation, asleep)
        await client.computers.delete(asleep)
        await until(client, asleep, status="deleted")
        assert left_of(installation, asleep) == []

        # One whose worker is away, and whose hostd is killed, too.
        away = (await client.computers.create("probe", key="sleeper")).id
        await client.computers.wake(away)
        await until(client, away, residency="running")
        installation.kill_worker()
        assert (await client.computers.delete(away)).status == "deleting"
        assert left_of(installation, away)
        await installation.kill_hostd()
        installation.start_worker()
        await until(client, away, status="deleted")
        assert left_of(installation, away) == []

        again = await outcome(await kept.enqueue([{"type": "text", "text": "echo:again"}]), 60)
        assert again.result["pid"] == before.result["pid"] and (await kept.get()).computer_id == stays
