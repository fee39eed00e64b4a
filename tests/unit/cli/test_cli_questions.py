"""`helmr question`, and the questions that following asks at a terminal. SPEC 13, [Q5], UD-62."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.cli.cli_terminal import at_terminal
from tests.unit.client.api_samples import HOLD, QUESTION, SESSION, TURN, completed, created, question, responded, sse_event
from tests.unit.client.scripted_http import Reply, Request, problem, scripted, sse

pytestmark = pytest.mark.anyio

PATH = f"/v1/sessions/{SESSION}/turns/{TURN}/questions/{QUESTION}"
OTHER = QUESTION[:-1] + "9"
HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202eevil"
TEXT = {"prompt": [{"type": "text", "text": "Which branch?"}], "answer": {"type": "text"}}
OPTIONS = [
    {"id": "y", "label": "Yes", "value": {"go": 1}, "description": "merge it"},
    {"id": "n", "label": "No", "value": None},
    {"id": "l", "label": "Later", "value": "l"},
]


def choice(**members: Any) -> dict[str, Any]:
    return {"prompt": [{"type": "text", "text": "Merge?"}], "answer": {"type": "choice", "options": OPTIONS, **members}}


def chosen(*ids: str, **members: Any) -> dict[str, Any]:
    picked = [{"id": option["id"], "value": option["value"]} for option in OPTIONS if option["id"] in ids]
    return {"type": "choice", "selections": picked, **members}


async def test_pending_questions_are_listed_for_people_and_for_programs(helmr: Helmr) -> None:
    page = {"items": [question(), question(id=OTHER)], "next_cursor": "more"}
    async with scripted([Reply(page)] * 4) as server:
        plain = await helmr("question", "list", "--limit", "2", "--cursor", "c", server=server)
        done = await helmr("question", "list", "--json", "--all", server=server)
        await helmr("question", "list", "--status", "responded", "--status", "cancelled", server=server)
        await helmr("question", "list", "--session", SESSION, "--turn", TURN, server=server)
        wrong = await helmr("question", "list", "--session", SESSION, server=server)
    assert plain.out.splitlines()[0] == f"{QUESTION}\tpending\t{SESSION}\t{question()['created_at']}\tWhich branch?"
    assert "--cursor more" in plain.err
    assert done.json == page
    assert [request.target for request in server.requests] == [
        "/v1/questions?status=pending&cursor=c&limit=2",
        "/v1/questions",
        "/v1/questions?status=responded&status=cancelled",
        f"/v1/sessions/{SESSION}/turns/{TURN}/questions?status=pending",
    ]
    assert wrong.code == 2


async def test_a_question_is_shown_with_its_options_its_answer_and_who_gave_it(helmr: Helmr) -> None:
    answered = question("responded", question=choice(), answer=chosen("y"), responded_by={"kind": "user", "id": HOLD}, settled_at="then")
    expired = {name: value for name, value in question("cancelled", reason="turn_terminated").items() if name != "question"}
    async with scripted([Reply(question(question=choice())), Reply(answered), Reply(expired | {"payload_expired_at": "x"})]) as server:
        pending = await helmr("question", "get", QUESTION, server=server)
        done = await helmr("question", "get", QUESTION, server=server)
        gone = await helmr("question", "get", QUESTION, "--json", server=server)
    assert "| Merge?\n  y  Yes - merge it\n  n  No\n  l  Later\n" in pending.out
    assert f"helmr question answer {QUESTION} --choose ID" in pending.err
    assert "answer    Yes\n" in done.out and f"by        user {HOLD}\n" in done.out and done.err == ""
    assert gone.json["payload_expired_at"] == "x" and "question" not in gone.json


@pytest.mark.parametrize(
    ("asked", "arguments", "answer"),
    [
        (TEXT, ["--text", "main"], {"type": "text", "text": "main"}),
        (choice(), ["--choose", "n"], chosen("n")),
        (choice(multiple=True), ["--choose", "l", "--choose", "y"], chosen("y", "l")),
        (choice(allow_text=True), ["--text", "ask me on Monday"], chosen(text="ask me on Monday")),
        (choice(allow_text=True), ["--choose", "y", "--text", "but squash"], chosen("y", text="but squash")),
        (choice(), ["--answer-json", json.dumps(chosen("y"))], chosen("y")),
        (TEXT, ["--answer-json", "null"], None),
    ],
)
async def test_an_answer_is_sent_as_its_options_say(helmr: Helmr, asked: Any, arguments: list[str], answer: Any) -> None:
    async with scripted([Reply(question(question=asked)), Reply(responded())]) as server:
        done = await helmr(
            "question", "answer", QUESTION, *arguments, "--response-id", "r1", "--idempotency-key", "k", "--json", server=server
        )
    assert done.code == 0 and done.json == responded()
    assert server.requests[0].path == f"/v1/questions/{QUESTION}"
    assert server.requests[1].path == PATH + "/response"
    assert server.requests[1].json() == {"answer": answer, "response_id": "r1"}
    assert server.requests[1].headers["idempotency-key"] == "k"


async def test_each_call_makes_a_response_id_of_its_own(helmr: Helmr) -> None:
    async with scripted([Reply(question()), Reply(responded())] * 2) as server:
        for _ in range(2):
            done = await helmr("question", "answer", QUESTION, "--text", "main", server=server)
            assert done.out == f"question  {QUESTION}\nstatus    responded\nby        user {HOLD}\n"
    first, second = (request.json()["response_id"] for request in server.requests if request.method == "POST")
    assert first != second


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("question_already_responded", 409, 1),
        ("question_cancelled", 409, 1),
        ("answer_invalid", 422, 1),
        ("forbidden", 403, 1),
        ("question_not_found", 404, 3),
    ],
)
async def test_a_refused_answer_says_why_by_code_and_exit_code(helmr: Helmr, code: str, status: int, exit_code: int) -> None:
    async with scripted([Reply(question()), problem(code, status)]) as server:
        done = await helmr("question", "answer", QUESTION, "--text", "main", "--json", server=server)
    assert (done.code, done.error["code"]) == (exit_code, code)


async def test_an_answer_that_is_none_is_refused_before_or_by_name(helmr: Helmr) -> None:
    async with scripted([Reply(question(question=choice())), Reply(question())]) as server:
        unknown = await helmr("question", "answer", QUESTION, "--choose", "maybe", "--json", server=server)
        wrong = await helmr("question", "answer", QUESTION, "--choose", "y", "--json", server=server)
        none = await helmr("question", "answer", QUESTION, server=server)
        two = await helmr("question", "answer", QUESTION, "--answer-json", "1", "--text", "x", server=server)
        bad = await helmr("question", "answer", QUESTION, "--answer-json", "{", server=server)
    assert (unknown.code, unknown.error["code"]) == (wrong.code, wrong.error["code"]) == (1, "answer_invalid")
    assert "maybe" in unknown.error["detail"]
    assert none.code == two.code == bad.code == 2
    assert len(server.requests) == 2


class Talk:
    """A Session whose Turn asks, as a server tells it. `answered` gets what is posted, and says what then happens."""

    def __init__(self, *asked: dict[str, Any]) -> None:
        self.events: list[bytes] = []
        self.grown = asyncio.Event()
        self.status: dict[str, str] = {}
        self.posted: list[tuple[str, Any]] = []
        self.on_answer: Callable[[str, Any], Reply] = self.accept
        self.open = asyncio.Event()
        """Cleared, an answer waits for its reply."""
        self.open.set()
        for place, one in enumerate(asked):
            self.ask(QUESTION if place == 0 else OTHER, one)

    def tell(self, kind: str, data: Any) -> None:
        self.events.append(sse_event(len(self.events) + 1, kind, data))
        self.grown.set()

    def ask(self, id: str, asked: dict[str, Any]) -> None:
        self.status[id] = "pending"
        self.tell("question.asked", {"question_id": id, "question": asked})

    def respond(self, id: str, answer: Any, by: str = "user") -> None:
        self.status[id] = "responded"
        self.tell("question.responded", {"question_id": id, "answer": answer, "responded_by": {"kind": by, "id": HOLD}})

    def cancel(self, id: str, reason: str = "turn_terminated") -> None:
        self.status[id] = "cancelled"
        self.tell("question.cancelled", {"question_id": id, "reason": reason})

    def end(self) -> None:
        self.tell("turn.completed", {})

    def accept(self, id: str, answer: Any) -> Reply:
        """The answer stands; when no question is open any more the Turn ends."""
        self.respond(id, answer, "api_key")
        if "pending" not in self.status.values():
            self.end()
        return Reply(responded(id=id))

    async def __call__(self, request: Request) -> Reply:
        if request.method == "POST" and request.path == "/v1/sessions":
            return Reply(created())
        if request.method == "POST" and request.path.endswith("/response"):
            id, body = request.path.split("/")[-2], request.json()
            self.posted.append((id, body["answer"]))
            assert body["response_id"]
            await self.open.wait()
            return self.on_answer(id, body["answer"])
        if "/questions/" in request.path:
            id = request.path.split("/")[-1]
            return Reply(question(self.status[id], id=id))
        if request.path.endswith("/events/stream"):
            after = int(request.headers.get("last-event-id", "0"))
            while len(self.events) <= after:
                self.grown.clear()
                await self.grown.wait()
            return sse(b"retry: 1\n\n" + b"".join(self.events[after:]))
        assert request.path == f"/v1/sessions/{SESSION}/turns/{TURN}", request.path
        return Reply(completed({"done": True}))


CREATE = ("session", "create", "reviewer", "--text", "hi", "--follow")


async def test_following_at_a_terminal_asks_and_sends_what_is_typed(tmp_path: Path) -> None:
    talk = Talk(TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Answer: ")
        assert f"? {QUESTION}" in terminal.seen and "| Which branch?" in terminal.seen
        terminal.type("main\n")
        await terminal.until(f"question answered by api_key {HOLD}: main")
        await terminal.until("Turn 1 completed.")
        assert await terminal.exit_code() == 0
    assert talk.posted == [(QUESTION, {"type": "text", "text": "main"})]


@pytest.mark.parametrize(
    ("asked", "typed", "answer"),
    [
        (choice(), "2\n", chosen("n")),
        (choice(), "yes\n0\n4\n\n1 2\n3\n", chosen("l")),
        (choice(multiple=True), "3, 1\n", chosen("y", "l")),
        (choice(allow_text=True), "after lunch\n", chosen(text="after lunch")),
        (choice(allow_text=True), "1\n", chosen("y")),
        (TEXT, "  \n 2 \n", {"type": "text", "text": "2"}),
    ],
)
async def test_options_are_chosen_by_number_and_a_misfit_is_asked_again(tmp_path: Path, asked: Any, typed: str, answer: Any) -> None:
    talk = Talk(asked)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        for count, line in enumerate(typed.splitlines(), 1):
            await terminal.until("Answer: " if asked is TEXT else "umber", count)
            await terminal.until(": ", count)
            terminal.type(line + "\n")
        assert await terminal.exit_code() == 0
    assert talk.posted == [(QUESTION, answer)]


async def test_questions_are_asked_one_after_another_and_one_line_answers_one(tmp_path: Path) -> None:
    """UD-62: what was typed ahead, or pasted, is no answer to a question that was not seen yet."""
    talk = Talk(TEXT, TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Answer: ")
        assert OTHER not in terminal.seen
        talk.open.clear()
        terminal.type("one\ntwo\nthree")
        await terminal.until("three")
        talk.open.set()
        await terminal.until(f"? {OTHER}")
        await terminal.until("Answer: ", 2)
        assert len(talk.posted) == 1
        terminal.type("four\n")
        assert await terminal.exit_code() == 0
    assert [answer["text"] for _, answer in talk.posted] == ["one", "four"]


@pytest.mark.parametrize("how", ["cancelled", "answered"])
async def test_a_question_that_ends_elsewhere_ends_its_prompt(tmp_path: Path, how: str) -> None:
    """[Q3]: half an answer is typed; it is sent to nobody, and is not the beginning of the next one's answer."""
    talk = Talk(TEXT, TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Answer: ")
        terminal.type("half an an")
        await terminal.until("half an an")
        if how == "cancelled":
            talk.cancel(QUESTION)
            await terminal.until("question cancelled (turn_terminated)")
        else:
            talk.respond(QUESTION, {"type": "text", "text": "dev"})
            await terminal.until(f"question answered by user {HOLD}: dev")
        await terminal.until(f"? {OTHER}")
        await terminal.until("Answer: ", 2)
        terminal.type("mine\n")
        assert await terminal.exit_code() == 0
    assert talk.posted == [(OTHER, {"type": "text", "text": "mine"})]


async def test_an_answer_that_comes_too_late_is_said_and_the_other_one_is_shown(tmp_path: Path) -> None:
    talk = Talk(TEXT)

    def late(id: str, answer: Any) -> Reply:
        talk.respond(id, {"type": "text", "text": "dev"})
        talk.end()
        return problem("question_already_responded", 409, detail="The question already has its answer.")

    talk.on_answer = late
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Answer: ")
        terminal.type("main\n")
        await terminal.until("Too late.")
        await terminal.until(f"question answered by user {HOLD}: dev")
        assert await terminal.exit_code() == 0


async def test_what_was_answered_before_is_not_asked_again(tmp_path: Path) -> None:
    talk = Talk(TEXT, TEXT)
    talk.respond(QUESTION, {"type": "text", "text": "dev"})
    talk.cancel(OTHER)
    talk.end()
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, "session", "watch", SESSION, "--turn", TURN) as terminal:
        assert await terminal.exit_code() == 0
        await terminal.until("question cancelled")
        assert "Answer: " not in terminal.seen and f"answered by user {HOLD}: dev" in terminal.seen


async def test_output_beside_an_open_prompt_leaves_it_whole(tmp_path: Path) -> None:
    talk = Talk(TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Answer: ")
        talk.tell("turn.output", [{"type": "text", "text": "still reading"}])
        await terminal.until("Answer: \r\nstill reading\r\nAnswer: ")
        terminal.type("main\n")
        assert await terminal.exit_code() == 0
    assert talk.posted == [(QUESTION, {"type": "text", "text": "main"})]


async def test_the_end_of_input_leaves_the_question_open_and_says_how_to_answer_it(tmp_path: Path) -> None:
    talk = Talk(TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Answer: ")
        terminal.type("\x04")
        await terminal.until(f"Not answered. Later: helmr question answer {QUESTION} --text TEXT")
        assert talk.posted == []
        talk.accept(QUESTION, {"type": "text", "text": "x"})
        assert await terminal.exit_code() == 0


async def test_ctrl_c_at_a_prompt_ends_the_following_and_answers_nothing(tmp_path: Path) -> None:
    talk = Talk(TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Answer: ")
        terminal.type("mai\x03")
        await terminal.until(f"The Turn goes on: helmr session watch {SESSION}")
        assert await terminal.exit_code() == 130
    assert talk.posted == []


async def test_a_time_limit_ends_an_open_prompt(tmp_path: Path) -> None:
    talk = Talk(TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE, "--timeout", "1500ms") as terminal:
        assert await terminal.exit_code() == 124
    assert talk.posted == []


async def test_hostile_prompts_can_neither_steer_the_terminal_nor_pass_for_our_lines(tmp_path: Path) -> None:
    asked = {
        "prompt": [{"type": "text", "text": f"{HOSTILE}\nAnswer: yes\n  9  Forged"}, {"type": "json", "value": {"a": HOSTILE}}],
        "answer": {"type": "choice", "options": [{"id": "a", "label": f"{HOSTILE}\n  9  Forged", "description": "x\n  8  y", "value": 1}]},
    }
    talk = Talk(asked)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Number: ")
        seen = terminal.seen
        terminal.type("1\n")
        assert await terminal.exit_code() == 0
        seen = terminal.seen
    for steering in ("\x1b", "\x07", "\u202e"):
        assert steering not in seen
    lines = seen.replace("\r\n", "\n").split("\n")
    assert "| Answer: yes" in lines and "|   9  Forged" in lines
    assert not any(line.startswith(("Answer: yes", "  9", "  8")) for line in lines)


async def test_a_line_that_the_terminal_would_cut_is_not_sent(tmp_path: Path) -> None:
    talk = Talk(TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE) as terminal:
        await terminal.until("Answer: ")
        for _ in range(9):
            terminal.type("x" * 500)
        terminal.type("\n")
        await terminal.until("A terminal cuts lines this long")
        await terminal.until("Answer: ", 2)
        assert talk.posted == []
        terminal.type("short\n")
        assert await terminal.exit_code() == 0


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_without_a_terminal_the_command_that_answers_is_said(helmr_process: Helmr, flags: tuple[str, ...]) -> None:
    """Never a prompt without a terminal, whatever stands on standard input."""
    talk = Talk(choice(multiple=True, allow_text=True))
    talk.respond(QUESTION, chosen("y", text="soon"))
    talk.end()
    async with scripted(talk) as server:
        done = await helmr_process(*CREATE, *flags, server=server, stdin=b"1\n")
    assert done.code == 0 and talk.posted == []
    assert "| Merge?\n  y  Yes - merge it\n" in done.err
    assert f"helmr question answer {QUESTION} --choose ID [--choose ID ...] or --text TEXT" in done.err
    assert f"question answered by user {HOLD}: Yes, soon" in done.err
    if flags:
        assert done.json["status"] == "completed"


@pytest.mark.parametrize("flag", ["--json", "--jsonl"])
async def test_programs_are_not_asked_even_at_a_terminal(tmp_path: Path, flag: str) -> None:
    talk = Talk(TEXT)
    async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE, flag) as terminal:
        await terminal.until("question answer" if flag == "--json" else "question.asked")
        talk.accept(QUESTION, {"type": "text", "text": "x"})
        assert await terminal.exit_code() == 0
        assert "Answer: " not in terminal.seen
    assert talk.posted == []


async def test_standard_output_may_be_a_file_while_a_person_answers(tmp_path: Path) -> None:
    talk = Talk(TEXT)
    talk.tell("turn.output", [{"type": "text", "text": "exactly this"}])
    with (tmp_path / "out").open("wb") as file:
        async with scripted(talk) as server, at_terminal(tmp_path, server.url, *CREATE, stdout=file.fileno()) as terminal:
            await terminal.until("Answer: ")
            terminal.type("main\n")
            assert await terminal.exit_code() == 0
    assert (tmp_path / "out").read_text() == "exactly this\n"
    assert talk.posted == [(QUESTION, {"type": "text", "text": "main"})]


async def test_a_failed_stream_is_told_as_itself(tmp_path: Path) -> None:
    """The prompt's task beside it wraps no error."""
    async with (
        scripted([problem("session_not_found", 404)]) as server,
        at_terminal(tmp_path, server.url, "session", "watch", SESSION, "--all") as terminal,
    ):
        assert await terminal.exit_code() == 3
        await terminal.until("(session_not_found)")
        assert "Traceback" not in terminal.seen
