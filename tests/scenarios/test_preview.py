"""The example that keeps a web server: it sleeps with its Computer, and the same process answers when that wakes. [C6], UD-35"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.scenarios.installed import installed
from tests.scenarios.watching import heard, outcome, pid_of, timeline, words

pytestmark = pytest.mark.timeout(120)

EXAMPLE = Path(__file__).parents[2] / "examples" / "preview"


@pytest.mark.ud("UD-35")
async def test_a_web_server_of_a_turn_answers_after_a_sleep_and_a_lost_one_is_started_again() -> None:
    """By hand and by the Agent's own idle period; `init` runs once, and again only after the loss."""
    async with installed(EXAMPLE) as installation, installation.client() as client:
        made = await client.sessions.create(agent="preview", input=words("one & only"))
        session, first = made.session, made.turn
        assert first is not None
        begun = await outcome(first, 60)
        assert begun.status == "completed" and begun.result["served"] == 1
        assert "one &amp; only" in begun.response[0]["text"]

        computer = (await session.get()).computer_id
        assert computer is not None
        await client.computers.hibernate(computer)
        slept = await heard(session, "computer.hibernated")
        woken = await outcome(await session.enqueue(words("two")), 60)
        assert woken.result == {"pid": begun.result["pid"], "served": 2}

        again = await heard(session, "computer.hibernated", after=slept.sequence)
        assert again.data["computer_id"] == computer
        third = await outcome(await session.enqueue(words("three")), 60)
        assert third.result == {"pid": begun.result["pid"], "served": 3}
        starts = [event.data["recovery_kind"] for event in await timeline(session) if event.kind == "session.process_started"]
        assert starts == ["initial"]

        os.kill(await pid_of(installation, session), signal.SIGKILL)
        await heard(session, "session.process_failed")
        fourth = await outcome(await session.enqueue(words("four")), 60)
        assert fourth.status == "completed" and fourth.result["served"] == 1
        starts = [event.data["recovery_kind"] for event in await timeline(session) if event.kind == "session.process_started"]
        assert starts == ["initial", "reconstructed"]
