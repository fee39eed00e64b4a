"""What `helmr dev` prints: the ready line, and Sessions line by line [D4]."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from helmr.dev.following import Lines, LiveOutput
from helmr.dev.screen import Ready, Screen
from helmr.protocol.errors import ImportFailed

Bounded = Callable[[], AbstractAsyncContextManager[object]]
SESSION = "01900000-0000-7000-8000-00000000abcd"
READY = Ready(
    url="http://127.0.0.1:8700",
    api_key="hlmr_sk_x",
    console_url="http://127.0.0.1:8700/",
    data_dir=Path("/data"),
    agents=("reviewer",),
)


class Both:
    """A screen and what was written to it."""

    def __init__(self, *, json_output: bool = False) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.screen = Screen(json_output=json_output, out=self.out, err=self.err)


class Record(NamedTuple):
    sequence: int
    body: bytes


def event(kind: str, data: object, sequence: int = 1) -> Record:
    return Record(sequence, json.dumps({"kind": kind, "data": data, "sequence": sequence}).encode())


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


def test_with_json_stdout_is_the_ready_line_alone() -> None:
    both = Both(json_output=True)
    both.screen.note("starting")
    both.screen.ready(READY)
    both.screen.session("reviewer", SESSION, "hello")
    assert json.loads(both.out.getvalue()) == {
        "url": "http://127.0.0.1:8700",
        "api_key": "hlmr_sk_x",
        "console_url": "http://127.0.0.1:8700/",
        "data_dir": "/data",
    }
    assert both.out.getvalue().count("\n") == 1
    assert both.err.getvalue() == "starting\nreviewer 00abcd | hello\n"


def test_people_are_told_the_url_the_key_and_the_next_command() -> None:
    both = Both()
    both.screen.ready(READY)
    shown = both.out.getvalue()
    assert "http://127.0.0.1:8700" in shown
    assert "hlmr_sk_x" in shown
    assert 'helmr session create reviewer --text "Hello" --follow' in shown


def test_without_a_published_agent_no_command_is_shown_that_can_not_work() -> None:
    both = Both()
    both.screen.ready(replace(READY, agents=()))
    shown = both.out.getvalue()
    assert "No Agent is published yet" in shown
    assert "session create" not in shown


def test_each_problem_of_a_project_has_a_line_of_its_own() -> None:
    both = Both()
    both.screen.error(ImportFailed("agents/a.py:3: no module named x\nagents/b.py:1: invalid syntax", hint="Mend them."))
    assert both.out.getvalue().splitlines() == [
        "error: agents/a.py:3: no module named x (import_failed)",
        "  agents/b.py:1: invalid syntax",
        "  Mend them.",
    ]


def test_a_question_is_shown_with_the_command_that_answers_it() -> None:
    """[Q5]: whoever watches `helmr dev` sees why the Turn waits."""
    both = Both()
    lines = Lines("asker", SESSION, both.screen)
    options = [{"id": "y", "label": "Yes", "value": 1}, {"id": "n", "label": "No\nreally", "value": 0}]
    question = {"prompt": text("Go\non?"), "answer": {"type": "choice", "options": options}}
    lines.add({"kind": "turn.output", "data": text("before")})
    lines.add({"kind": "question.asked", "data": {"question_id": "q1", "question": question}})
    lines.add({"kind": "question.cancelled", "data": {"question_id": "q1", "reason": "turn_stopping"}})
    assert both.out.getvalue().splitlines() == [
        "asker 00abcd | before",
        "asker 00abcd | [question.asked] | Go",
        "asker 00abcd | [question.asked] | on?",
        "asker 00abcd | [question.asked]   y  Yes",
        "asker 00abcd | [question.asked]   n  No\\nreally",
        "asker 00abcd | [question.asked] helmr question answer q1 --choose ID",
        "asker 00abcd | [question.cancelled] reason=turn_stopping",
    ]


def test_pieces_become_whole_lines_and_the_rest_comes_at_the_end_of_the_turn() -> None:
    both = Both()
    lines = Lines("echo", SESSION, both.screen)
    for kind, data in (
        ("turn.output", text("one ")),
        ("turn.output", text("line\ntwo")),
        ("turn.output", [{"type": "json", "value": {"n": 1}}]),
        ("turn.output", text("rest")),
        ("turn.failed", {"code": "handler_failed", "message": "no"}),
    ):
        lines.add({"kind": kind, "data": data})
    assert both.out.getvalue().splitlines() == [
        "echo 00abcd | one line",
        "echo 00abcd | two",
        'echo 00abcd | {"n": 1}',
        "echo 00abcd | rest",
        "echo 00abcd | [turn.failed] code=handler_failed message=no",
    ]


def test_agent_text_can_not_steer_the_terminal() -> None:
    both = Both()
    Lines("echo", SESSION, both.screen).add({"kind": "turn.output", "data": text("a\x1b[2Jb\rc\u202ed\n")})
    assert both.out.getvalue() == "echo 00abcd | a\\x1b[2Jb\\x0dc\\u202ed\n"


async def test_a_session_is_followed_once_however_often_it_is_seen(bounded: Bounded) -> None:
    both = Both()
    follows: list[tuple[str, int]] = []
    shown = asyncio.Event()

    async def follow(session_id: str, after: int) -> AsyncIterator[Sequence[Record]]:
        follows.append((session_id, after))
        yield [event("turn.output", text("hello\n"))]
        shown.set()
        await asyncio.Event().wait()

    async def describe(session_id: str) -> tuple[str, int]:
        assert session_id == SESSION
        return "echo", 7

    live = LiveOutput(follow, describe, both.screen)
    async with bounded():
        for _ in range(3):
            live.saw(SESSION)
        await shown.wait()
        live.saw(SESSION)
    await live.stop()
    assert follows == [(SESSION, 7)]
    assert both.out.getvalue() == "echo 00abcd | hello\n"
