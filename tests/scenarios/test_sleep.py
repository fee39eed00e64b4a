"""More Sessions than a worker has room for: their Computers sleep and wake as they are needed. [C6], [C10]"""

from __future__ import annotations

import asyncio

import pytest
from tests.scenarios.conftest import PROJECT
from tests.scenarios.installed import installed
from tests.scenarios.watching import handled_once, heard, outcome, probe, settled_once, timeline, words

pytestmark = pytest.mark.timeout(120)


async def test_ten_conversations_go_on_in_the_room_of_three_whatever_is_killed_meanwhile() -> None:
    """Each keeps its process, its `init` and its order; the worker and hostd are killed while some sleep."""
    async with installed(PROJECT, cores=3) as installation, installation.client() as client:
        begun = await asyncio.gather(*(probe(client, f"echo:{number}") for number in range(10)))
        firsts = [await outcome(turn, 60) for _, turn in begun]
        assert {first.status for first in firsts} == {"completed"}
        sessions = [session for session, _ in begun]
        installation.kill_worker()
        await installation.kill_hostd()
        installation.start_worker()
        for _ in range(2):
            turns = await asyncio.gather(*(session.enqueue(words("echo:more")) for session in sessions))
            again = [await outcome(turn, 60) for turn in turns]
            assert [(one.status, one.result["pid"], one.result["kind"]) for one in again] == [
                ("completed", first.result["pid"], "initial") for first in firsts
            ]
        kinds = [event.kind for session in sessions for event in await timeline(session)]
        assert kinds.count("computer.hibernated") >= 7 and kinds.count("computer.woken") >= 7
        for session in sessions:
            handled_once(installation, await settled_once(session))
        asleep = [session for session in sessions if (await timeline(session))[-1].kind == "computer.hibernated"]
        await asleep[0].close()
        await heard(asleep[0], "session.process_stopped")
