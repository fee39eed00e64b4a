"""Text of agents, of other people and of hostile servers on a person's terminal: seen as it is, and steering nothing. SPEC 13."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.cli_runs import Helmr
from tests.unit.cli.cli_terminal import at_terminal
from tests.unit.client.api_samples import QUESTION, SESSION, TURN, event, question, session, sse_event, turn
from tests.unit.client.scripted_http import Reply, Request, Scripted, problem, scripted, sse

from helmr.cli.terminal import escaped

pytestmark = pytest.mark.anyio

HOSTILE = (
    "\x1b[2J\x1b[31mred\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\ \x9b31m\x90q\x9c"
    " a\rb\x08c\x7f\x0e \u202eevil\u2066\u2069\u200f\u061c z\u200b\u2060\ufeff\u00ad\u2028 \U000e0041 x\u200dy \x1bP+q\x1b\\"
)
SEEN = "\\x1b[2J\\x1b[31mred\\x1b]0;title\\x07\\x1b]52;c;ZXZpbA==\\x07\\x1b]8;;https://evil.example\\x1b\\link"
STEERING = [
    chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)) if chr(code) not in "\r\n\t"
]
UNSEEN = ["\u200b", "\u2060", "\ufeff", "\u00ad", "\u2028", "\u200f", "\u061c", "\U000e0041", "x\u200dy"]


def harmless(seen: str) -> bool:
    """Nothing that a terminal obeys is left; returns stand only before the line ends that the terminal itself makes."""
    return not any(bad in seen for bad in [*STEERING, *UNSEEN]) and "\r" not in seen.replace("\r\n", "")


@given(st.text(st.characters()))
def test_no_text_whatever_steers_a_terminal(text: str) -> None:
    shown = escaped(text)
    assert not any(bad in shown for bad in [*STEERING, "\r", *UNSEEN])
    assert shown.isprintable() or any(mark in shown for mark in "\n\t") or not shown.encode("utf-8").decode().isprintable()
    assert escaped(shown) == shown


@pytest.mark.parametrize("text", ["é ü 漢字 עברית عربي हिन्दी", "👩‍👩‍👧 👍🏽 🏳️‍🌈 ✔️", "می‌خواهم", "line\n\tindented", "\\x1b is a text"])
def test_what_people_write_is_shown_as_it_is(text: str) -> None:
    assert escaped(text) == text


async def shown(server: Scripted, home: Path, *arguments: str) -> str:
    """What a person sees of a command; it ends by itself."""
    async with at_terminal(home, server.url, *arguments) as terminal:
        await terminal.exit_code()
        await terminal.ended.wait()
        return terminal.seen


def answer(request: Request) -> Reply:
    """A hostile server: each text of it that need not be an id is one that should steer."""
    path = request.path.partition("?")[0]
    question_ = {"prompt": [{"type": "text", "text": HOSTILE}], "answer": {"type": "choice", "options": [_option()]}}
    events = [
        event(1, "turn.output", [{"type": "text", "text": HOSTILE}, {"type": "json", "value": {HOSTILE: HOSTILE}}]),
        event(2, "question.asked", {"question_id": QUESTION, "question": question_}),
        event(
            3,
            "question.responded",
            {"question_id": QUESTION, "answer": {"type": "text", "text": HOSTILE}, "responded_by": {"kind": HOSTILE}},
        ),
        event(4, f"odd.{HOSTILE}", {HOSTILE: HOSTILE}),
        event(5, "turn.failed", {"code": "handler_failed", "message": HOSTILE}),
        event(6, "session.process_failed", {"cause": HOSTILE, "message": HOSTILE}),
    ]
    failed = turn(
        "failed", error={"code": HOSTILE, "message": HOSTILE + "\nTurn 2 completed."}, response=[{"type": "text", "text": HOSTILE}]
    )
    if path.endswith("/stream"):
        body = b"".join(sse_event(e["sequence"], e["kind"], e["data"]) for e in events)
        return sse(body + b"event: end\ndata: {}\n\n")
    if path.endswith("/events"):
        return Reply({"records": events, "next_after": 6, "has_more": False, "retained_after": 0, "sealed": True})
    if path.endswith("/questions") or path == "/v1/questions":
        return Reply({"items": [question(question=question_)], "next_cursor": None})
    if "/questions/" in path:
        return Reply(question(question=question_))
    if path.endswith("/turns"):
        return Reply({"items": [failed], "next_cursor": None})
    if "/turns/" in path:
        return Reply(failed)
    if path.endswith("/explain"):
        return Reply({"state": "idle", "sentence": HOSTILE, "facts": {}})
    hostile = session(key=HOSTILE + "\nstatus  closed", agent=HOSTILE, labels={HOSTILE: HOSTILE})
    return Reply({"items": [hostile], "next_cursor": HOSTILE} if path == "/v1/sessions" else hostile)


def _option() -> dict[str, Any]:
    return {"id": HOSTILE[:100], "label": HOSTILE, "description": HOSTILE, "value": HOSTILE}


@pytest.mark.parametrize(
    "arguments",
    [
        ("session", "watch", SESSION),
        ("session", "watch", SESSION, "--all"),
        ("session", "events", SESSION),
        ("session", "events", SESSION, "--follow"),
        ("session", "events", SESSION, "--jsonl"),
        ("session", "get", SESSION),
        ("session", "get", SESSION, "--json"),
        ("session", "list"),
        ("session", "turn", "get", SESSION, TURN),
        ("session", "turn", "list", SESSION),
        ("session", "turn", "wait", SESSION, TURN),
        ("question", "list"),
        ("question", "get", SESSION, TURN, QUESTION),
        ("question", "get", QUESTION),
    ],
    ids=" ".join,
)
async def test_no_command_lets_a_server_steer_the_terminal(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    async with scripted(answer) as server:
        seen = await shown(server, tmp_path, *arguments)
    assert harmless(seen), repr(seen)
    assert "evil" in seen or "usage" in seen, seen


@pytest.mark.parametrize("json_", [(), ("--json",)])
async def test_a_refusals_words_do_not_steer_the_terminal(tmp_path: Path, json_: tuple[str, ...]) -> None:
    """Detail, hint, code and facts are a server's own; a forged hint stands apart from ours."""
    refused = problem("session_not_found", 404, detail=HOSTILE + "\nhint: run this", hint=HOSTILE, request_id=HOSTILE)
    async with scripted([refused]) as server:
        seen = await shown(server, tmp_path, "session", "get", SESSION, *json_)
    assert harmless(seen) and "evil" in seen
    assert "\nhint: run this" not in seen.replace("\r", "")


async def test_further_lines_of_a_value_cannot_pass_for_other_values(tmp_path: Path) -> None:
    async with scripted(answer) as server:
        seen = (await shown(server, tmp_path, "session", "get", SESSION)).replace("\r", "")
    assert "\nstatus  closed" not in seen and " status  closed" in seen
    async with scripted(answer) as server:
        seen = (await shown(server, tmp_path, "session", "turn", "wait", SESSION, TURN)).replace("\r", "")
    assert "\nTurn 2 completed." not in seen and "  Turn 2 completed." in seen


async def test_a_pipe_gets_the_exact_bytes_whatever_the_locale_says(helmr_process: Helmr) -> None:
    body = sse_event(1, "turn.output", [{"type": "text", "text": HOSTILE}]) + sse_event(2, "turn.failed", {})
    replies = [Reply({"items": [turn()], "next_cursor": None}), sse(body, hold=True), Reply(turn("failed", error={"code": "x"}))]
    for environ in ({}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        async with scripted(list(replies)) as server:
            piped = await helmr_process("session", "watch", SESSION, server=server, **environ)
        assert piped.out.startswith(HOSTILE), environ


async def test_names_and_files_that_are_no_utf_8_are_refused_in_words(helmr_process: Helmr, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(b'"\xff\xfe"')
    async with scripted(answer) as server:
        done = await helmr_process("session", "create", "reviewer", "--input-file", "bad.json", server=server)
    assert done.code == 2 and "UTF-8" in done.err and "Traceback" not in done.err
    name = os.fsdecode(b"no\xffsuch\x1b[31m.json")
    async with scripted(answer) as server:
        done = await helmr_process("session", "create", "reviewer", "--input-file", name, server=server)
    assert done.code != 0 and "Traceback" not in done.err
    async with scripted(answer) as server:
        seen = await shown(server, tmp_path, "session", "create", "reviewer", "--input-file", name)
    assert harmless(seen) and "such" in seen


async def test_a_line_without_end_is_shown_and_ends(helmr_process: Helmr) -> None:
    text = "x" * 200_000
    page = {"records": [event(1, "turn.output", [{"type": "text", "text": text}])] * 1, "next_after": 1, "has_more": False}
    async with scripted([Reply(page | {"retained_after": 0, "sealed": True})]) as server:
        done = await helmr_process("session", "events", SESSION, server=server)
    assert done.code == 0 and len(done.out) < 400 and done.out.endswith("…\n")
    async with scripted([Reply(page | {"retained_after": 0, "sealed": True})]) as server:
        done = await helmr_process("session", "events", SESSION, "--jsonl", server=server)
    assert json.loads(done.out)["data"][0]["text"] == text
