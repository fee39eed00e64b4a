"""The limits of questions and answers, row by row: exactly at the limit, and one over. SPEC [Q2], [E6].

The host checks again what a guest says (I4), so that each row is stored by the one and refused by the other.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.service.scripted import house

from helmr.protocol.errors import AnswerInvalid
from helmr.protocol.questions import choice_answer

pytestmark = pytest.mark.anyio

KIB = 1024


def encoded(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def option(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {"id": f"o{number}", "label": f"Option {number}", "value": number} | changes


def choice(*options: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"prompt": parts("Which?"), "answer": {"type": "choice", "options": list(options), **members}}


def text_of(size: int) -> dict[str, Any]:
    """A text question whose stored form has so many bytes."""
    empty = {"prompt": parts(""), "answer": {"type": "text"}}
    return empty | {"prompt": parts("q" * (size - encoded(empty)))}


ASKED = {
    "a hundred options": (choice(*map(option, range(100))), choice(*map(option, range(101)))),
    "128 bytes of id": (choice(option(id="é" * 64)), choice(option(id="é" * 64 + "x"))),
    "256 bytes of label": (choice(option(label="é" * 128)), choice(option(label="é" * 128 + "x"))),
    "2 KiB of description": (choice(option(description="é" * KIB)), choice(option(description="é" * KIB + "x"))),
    "256 KiB in all": (text_of(256 * KIB), text_of(256 * KIB + 1)),
    "64 parts of prompt": (
        {"prompt": [{"type": "json", "value": number} for number in range(64)], "answer": {"type": "text"}},
        {"prompt": parts(*"x" * 65), "answer": {"type": "text"}},
    ),
}


@pytest.mark.parametrize(("fits", "over"), ASKED.values(), ids=ASKED)
async def test_a_question_at_its_limit_is_asked_and_answered_and_one_over_is_not(database, tmp_path, fits, over):
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        process.say("question.ask", turn=turn, question=fits)
        asked = (await h.until(session, "question.asked"))["data"]
        assert asked["question"] == fits
        answer = {"type": "text", "text": "x"}
        if fits["answer"]["type"] == "choice":
            answer = choice_answer(fits, [fits["answer"]["options"][-1]["id"]])
        await h.plane.questions.respond(h.principal, session, turn, asked["question_id"], answer, "r", None)
        assert (await process.heard("question.answer"))["answer"] == answer
        process.say("question.ask", turn=turn, question=over)
        assert (await h.turn(session, turn))["error"]["code"] == "process_lost"
        assert (await h.kinds(session)).count("question.asked") == 1


def answers() -> dict[str, tuple[dict[str, Any], Any, Any]]:
    """Row: the question, an answer at the limit, an answer one over."""
    text = {"prompt": parts("Why?"), "answer": {"type": "text"}}
    bare = encoded({"type": "text", "text": ""})
    free = choice(option(), allow_text=True)

    def heavy(size: int) -> dict[str, Any]:
        """A choice whose whole answer has so many bytes, by the values of its two options."""
        empty = choice(option(1, value=""), option(2, value=""), multiple=True)
        left = size - encoded(choice_answer(empty, ["o1", "o2"]))
        return choice(option(1, value="v" * (left // 2)), option(2, value="v" * (left - left // 2)), multiple=True)

    whole, more = heavy(64 * KIB), heavy(64 * KIB + 1)
    return {
        "8 KiB of own text": (free, choice_answer(free, [], "é" * 4 * KIB), choice_answer(free, [], "é" * 4 * KIB + "x")),
        "64 KiB of text answer": (
            text,
            {"type": "text", "text": "x" * (64 * KIB - bare)},
            {"type": "text", "text": "x" * (64 * KIB - bare + 1)},
        ),
        "64 KiB of choice": (whole, choice_answer(whole, ["o1", "o2"]), None),
        "over 64 KiB of choice": (more, choice_answer(more, ["o1"]), choice_answer(more, ["o1", "o2"])),
        "one selection": (choice(option(1), option(2)), None, choice_answer(choice(option(1), option(2)), ["o1", "o2"])),
        "something": (free, choice_answer(free, ["o1"], "and why"), {"type": "choice", "selections": []}),
        "some text": (text, {"type": "text", "text": " "}, {"type": "text", "text": ""}),
        "each option once": (
            choice(option(1), option(2), multiple=True),
            choice_answer(choice(option(1), option(2)), ["o2", "o1"]),
            {"type": "choice", "selections": [{"id": "o1", "value": 1}, {"id": "o1", "value": 1}]},
        ),
        "declaration order": (
            choice(option(1), option(2), multiple=True),
            None,
            {"type": "choice", "selections": [{"id": "o2", "value": 2}, {"id": "o1", "value": 1}]},
        ),
    }


async def test_an_answer_at_its_limit_is_recorded_and_one_over_is_refused(database, tmp_path):
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        for number, (name, (question, fits, over)) in enumerate(answers().items(), 1):
            process.say("question.ask", turn=turn, question=question)
            id = (await h.until(session, "question.asked", number))["data"]["question_id"]
            if over is not None:
                with pytest.raises(AnswerInvalid):
                    await h.plane.questions.respond(h.principal, session, turn, id, over, "r", None)
                    pytest.fail(f"{name}: one over was taken")
            if fits is not None:
                await h.plane.questions.respond(h.principal, session, turn, id, fits, "r", None)
                assert json.loads(await h.plane.questions.find(h.principal, id))["answer"] == fits, name
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"


@pytest.mark.parametrize(
    "text", ["\0", "a\u0000b", "\U0001f600 \u202e", "\u2028\u2029", "\\u0000", '"', "x" * 1000], ids=lambda text: ascii(text)[:12]
)
async def test_any_text_goes_out_and_comes_back_as_it_was(database, tmp_path, text):
    """[E6]: in prompts, values and answers, through storage, events and frames."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        question = choice(option(value={"big": 2**70, text: [text, 1.5, None]}), allow_text=True) | {"prompt": parts(text)}
        process.say("question.ask", turn=turn, question=question)
        asked = (await h.until(session, "question.asked"))["data"]
        assert asked["question"] == question
        answer = choice_answer(question, ["o1"], text)
        await h.plane.questions.respond(h.principal, session, turn, asked["question_id"], answer, "r", None)
        assert (await process.heard("question.answer"))["answer"] == answer
        assert (await h.until(session, "question.responded"))["data"]["answer"] == answer
