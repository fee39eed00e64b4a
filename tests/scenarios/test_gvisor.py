"""An installation whose Computers run in gVisor: an Agent and its web server sleep on disk, and answer from the same processes [C6]."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.runsc import RunscMissing, find_runsc
from tests.scenarios.installed import installed
from tests.scenarios.watching import heard, outcome, timeline, words

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="gVisor keeps memory on disk for root only"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "preview"


async def test_an_agent_and_its_server_sleep_on_disk_and_answer_from_the_same_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand and by the Agent's idle period. The timeline says where memory was; `init` runs once."""
    try:
        monkeypatch.setenv("HELMR_RUNSC", find_runsc())
    except RunscMissing as missing:
        pytest.skip(str(missing))
    async with installed(EXAMPLE, driver="gvisor") as installation, installation.client() as client:
        made = await client.sessions.create(agent="preview", input=words("one"))
        session, first = made.session, made.turn
        assert first is not None
        begun = await outcome(first, 90)
        assert begun.status == "completed" and begun.result["served"] == 1

        computer = (await session.get()).computer_id
        assert computer is not None
        await client.computers.hibernate(computer)
        slept = await heard(session, "computer.hibernated")
        assert slept.data["rung"] == "image" and slept.data["kept"] == ["memory", "files"]
        assert slept.data["image_bytes"] > 1 << 20
        (record,) = installation.folder.glob(f"**/computers/{computer}/spec.json")
        assert json.loads(record.read_text())["image"]["sealed"], "by a key that the control plane keeps"
        assert not list(Path("/sys/fs/cgroup").glob(f"*/helmr/{computer}*")), "it has no process"
        second = await outcome(await session.enqueue(words("two")), 90)
        assert second.result == {"pid": begun.result["pid"], "served": 2}
        assert (await heard(session, "computer.woken")).data["rung"] == "image"

        again = await heard(session, "computer.hibernated", after=slept.sequence)
        assert again.data["rung"] == "image"
        third = await outcome(await session.enqueue(words("three")), 90)
        assert third.result == {"pid": begun.result["pid"], "served": 3}
        starts = [event.data["recovery_kind"] for event in await timeline(session) if event.kind == "session.process_started"]
        assert starts == ["initial"]
