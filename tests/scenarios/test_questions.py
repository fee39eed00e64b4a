"""The example that asks before it acts, on a whole installation: answers by CLI, client and terminal, and kill -9 on the way.

[Q1], [Q3]-[Q5], I6, 13; UD-61, UD-62, UD-63, UD-64.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.installed import installed
from tests.scenarios.watching import heard, outcome, pid_of, timeline, words
from tests.unit.cli.cli_terminal import at_terminal

from helmr.client import HelmrClient, choice_answer, text_answer
from helmr.protocol.errors import QuestionCancelled
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(120)

EXAMPLE = Path(__file__).parents[2] / "examples" / "release"


@pytest.fixture(scope="module")
async def house(anyio_backend: str) -> AsyncIterator[Installation]:
    """An installation of the example."""
    async with installed(EXAMPLE) as installation:
        yield installation


@pytest.fixture
async def client(house: Installation) -> AsyncIterator[HelmrClient]:
    """A client that outlasts what the test kills; the control plane is whole again afterwards."""
    async with house.client() as client:
        yield client
    if house.server is None or house.server.poll() is not None or house.planes[0].fault:
        await restarted(house)


async def helmr(house: Installation, *arguments: str) -> Any:
    """Run the command; its one JSON object."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "helmr.cli", *arguments, "--json"],
        env=os.environ | house.environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def asked(session: Any, turn: Any, number: int) -> Any:
    """The number-th question of the Turn, as its timeline tells it."""
    after = 0
    for _ in range(number):
        event = await heard(session, "question.asked", turn=turn.id, after=after)
        after = event.sequence
    return event.data


async def release(client: HelmrClient, version: str = "1.4.2") -> tuple[Any, Any]:
    made = await client.sessions.create(agent="release", input=words(version))
    return made.session, made.turn


async def restarted(house: Installation, fault: str = "") -> None:
    house.kill_server()
    await house.start_server(fault=fault)


@pytest.mark.ud("UD-64")
async def test_a_turn_asks_a_choice_and_a_text_and_goes_on_with_what_the_cli_answers(house: Installation, client: HelmrClient) -> None:
    session, turn = await release(client)
    first = await asked(session, turn, 1)
    listed = await helmr(house, "question", "list")
    assert [item["id"] for item in listed["items"]] == [first["question_id"]]
    assert listed["items"][0]["question"] == first["question"]
    assert [option["label"] for option in first["question"]["answer"]["options"]] == ["patch, 1.4.3", "minor, 1.5.0", "major, 2.0.0"]
    receipt = await helmr(house, "question", "answer", first["question_id"], "--choose", "2")
    assert receipt["status"] == "responded" and receipt["responded_by"]["kind"] == "api_key"
    second = await asked(session, turn, 2)
    assert second["question"]["prompt"] == words("What is new in 1.5.0?")
    await helmr(house, "question", "answer", second["question_id"], "--text", "Faster \u2603 start\nand more.")
    third = await asked(session, turn, 3)
    await helmr(house, "question", "answer", third["question_id"], "--choose", "1")
    ended = await outcome(turn)
    assert ended.result == {"version": "1.5.0", "written": True, "changelog": "## 1.5.0\n\nFaster \u2603 start\nand more.\n"}
    states = (await turn.asks.list()).items
    assert [state.status for state in states] == ["responded"] * 3
    assert states[1].answer == {"type": "text", "text": "Faster \u2603 start\nand more."}
    responded = [event for event in await timeline(session) if event.kind == "question.responded"]
    assert [event.data["question_id"] for event in responded] == [state.id for state in states]
    assert (await helmr(house, "question", "list"))["items"] == []


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
async def test_a_killed_control_plane_loses_no_question_and_no_answer(house: Installation, client: HelmrClient, moment: str) -> None:
    """Killed as a question is stored, between ask and answer, and as an answer is stored: before the commit, or after it, when neither the
    person nor the process has heard of it. The client repeats what had no reply, with the same ids."""
    await restarted(house, f"{moment}:question.ask=kill")
    session, turn = await release(client)
    await house.server_died()
    await house.start_server()
    first = await asked(session, turn, 1)
    await restarted(house)
    await turn.asks.respond(first["question_id"], choice_answer(first["question"], ["3"]))
    second = await asked(session, turn, 2)
    await restarted(house, f"{moment}:respond=kill")
    async with asyncio.TaskGroup() as group:
        answering = group.create_task(turn.asks.respond(second["question_id"], text_answer("All of it."), response_id="once"))
        await house.server_died()
        await house.start_server()
    receipt = await answering
    third = await asked(session, turn, 3)
    assert await turn.asks.respond(second["question_id"], text_answer("All of it."), response_id="once") == receipt
    await turn.asks.respond(third["question_id"], choice_answer(third["question"], ["1"]))
    ended = await outcome(turn)
    assert ended.result["changelog"] == "## 2.0.0\n\nAll of it.\n"
    kinds = [event.kind for event in await timeline(session) if event.kind.startswith("question.")]
    assert kinds == ["question.asked", "question.responded"] * 3


ENDS = {"killed": "interrupted", "interrupted": "interrupted", "closed": "failed", "cancelled": "cancelled"}
"""Ways in which a question ends without an answer, and the status of its Turn then."""


async def last_question(client: HelmrClient) -> tuple[Any, Any, Any]:
    """A Turn that has come to its last question: whether it may act."""
    session, turn = await release(client)
    first = await asked(session, turn, 1)
    await turn.asks.respond(first["question_id"], choice_answer(first["question"], ["1"]))
    second = await asked(session, turn, 2)
    await turn.asks.respond(second["question_id"], text_answer("Nothing."))
    return session, turn, await asked(session, turn, 3)


@pytest.mark.ud("UD-61")
@pytest.mark.ud("UD-63")
async def test_questions_without_an_answer_end_and_nothing_was_written(house: Installation, client: HelmrClient) -> None:
    """[Q4], [S18]: whatever ends them, the agent gets no consent; after a restart of everything nothing is left to ask."""
    found = dict(zip(ENDS, await asyncio.gather(*(last_question(client) for _ in ENDS)), strict=True))
    assert len((await client.questions.list()).items) == len(ENDS)
    os.kill(await pid_of(house, found["killed"][0]), signal.SIGKILL)
    await found["interrupted"][1].interrupt()
    await found["closed"][0].close()
    await found["cancelled"][0].cancel()
    for how, (session, turn, _) in found.items():
        ended = await outcome(turn)
        assert ended.status == ENDS[how]
        if how == "closed":
            assert ended.error.code == "handler_failed" and "AskCancelled" in ended.error.message
        assert [event.kind for event in await timeline(session) if event.kind.startswith("question.")][-1] == "question.cancelled"
    await restarted(house)
    house.kill_worker()
    house.start_worker()
    assert (await client.questions.list()).items == ()
    for _, turn, last in found.values():
        with pytest.raises(QuestionCancelled):
            await turn.asks.respond(last["question_id"], choice_answer(last["question"], ["1"]))
    session = found["killed"][0]
    following = await session.enqueue(words("9.9.9"))
    for number in (1, 2, 3):
        one = await asked(session, following, number)
        given = text_answer("After all.") if number == 2 else choice_answer(one["question"], ["1"])
        await following.asks.respond(one["question_id"], given)
    assert (await outcome(following)).result["changelog"] == "## 9.9.10\n\nAfter all.\n"


@pytest.mark.ud("UD-62")
async def test_a_person_at_a_terminal_is_asked_while_following(house: Installation, client: HelmrClient, tmp_path: Path) -> None:
    arguments = ("session", "create", "release", "--text", "1.4.2", "--follow")
    async with at_terminal(tmp_path, house.url, *arguments, key=house.key) as terminal:
        await terminal.until("2  minor, 1.5.0")
        await terminal.until("Number: ")
        terminal.type("2\n")
        await terminal.until("| What is new in 1.5.0?")
        await terminal.until("Answer: ")
        terminal.type("It asks.\n")
        await terminal.until("| Write this into /workspace/CHANGELOG.md?")
        await terminal.until("Number: ", 2)
        terminal.type("2\n")
        await terminal.until("Nothing was written.")
        assert await terminal.exit_code() == 0
    assert (await client.questions.list()).items == ()
