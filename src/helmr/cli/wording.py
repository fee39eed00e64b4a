"""Questions and their answers as people read and write them. SPEC 13, [Q1].

Prompts and labels are an agent's text: each of their lines stands behind a mark, so that none can pass for a line of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from helmr.protocol.errors import AnswerInvalid
from helmr.protocol.questions import check_answer, choice_answer, text_answer

Question = Mapping[str, Any]
"""A question in its stored form: `prompt` and `answer`."""


def prompt_text(question: Question) -> str:
    """What is asked: texts exactly, JSON parts compact on lines of their own."""
    text = ""
    for part in question["prompt"]:
        if part["type"] == "text":
            text += part["text"]
        else:
            text += ("" if not text or text.endswith("\n") else "\n") + _compact(part["value"]) + "\n"
    return text.removesuffix("\n")


def asked_lines(question: Question, *, numbered: bool) -> list[str]:
    """The prompt and what there is to choose: by number for who answers here, else by id."""
    lines = [f"| {line}" for line in prompt_text(question).split("\n")]
    spec = question["answer"]
    if spec["type"] == "choice":
        names = [str(place) if numbered else one_line(option["id"]) for place, option in enumerate(spec["options"], 1)]
        width = max((len(name) for name in names), default=0)
        for name, option in zip(names, spec["options"], strict=True):
            label = one_line(option["label"]) + (f" - {one_line(option['description'])}" if option.get("description") else "")
            lines.append(f"  {name.rjust(width) if numbered else name.ljust(width)}  {label}")
    return lines


def invitation(question: Question) -> str:
    """What a line of answer may be."""
    spec = question["answer"]
    if spec["type"] == "text":
        return "Answer: "
    if not spec["options"]:
        return "Answer in your own words: "
    what = "Numbers, with commas" if spec.get("multiple") else "Number"
    return f"{what}, or your own words: " if spec.get("allow_text") else f"{what}: "


def read_answer(question: Question, line: str) -> dict[str, Any]:
    """The answer that a person typed in one line: a text, or numbers of options. Raises `AnswerInvalid` saying what to type."""
    line = line.strip()
    spec = question["answer"]
    if not line:
        raise AnswerInvalid("An answer is not empty.")
    if spec["type"] == "text":
        return check_answer(question, text_answer(line))[0]
    words = line.replace(",", " ").split() if spec.get("multiple") else [line]
    places = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= 3]
    options = spec["options"]
    if len(places) == len(words) and all(1 <= place <= len(options) for place in places):
        return check_answer(question, choice_answer(question, [options[place - 1]["id"] for place in places]))[0]
    if spec.get("allow_text"):
        return check_answer(question, choice_answer(question, [], line))[0]
    raise AnswerInvalid(f"Type a number from 1 to {len(options)}." if len(options) > 1 else "Type 1 to choose the one option.")


def said(question: Question | None, answer: Mapping[str, Any]) -> str:
    """An answer in one line: the text, or what was chosen, by label where the question is known."""
    if answer.get("type") == "text":
        return one_line(str(answer.get("text", "")))
    labels = {option["id"]: option["label"] for option in question["answer"].get("options", ())} if question is not None else {}
    selections: Sequence[Mapping[str, Any]] = answer.get("selections", ())
    chosen = [one_line(str(labels.get(selection["id"], selection["id"]))) for selection in selections]
    return ", ".join([*chosen, *([one_line(answer["text"])] if answer.get("text") else [])])


def how_to_answer(question_id: str, question: Question) -> str:
    """The command that answers from any shell."""
    spec = question["answer"]
    if spec["type"] == "text" or not spec["options"]:
        return f"helmr question answer {question_id} --text TEXT"
    more = " [--choose ID ...]" if spec.get("multiple") else ""
    return f"helmr question answer {question_id} --choose ID{more}" + (" or --text TEXT" if spec.get("allow_text") else "")


def one_line(text: str) -> str:
    """`text` where it must not begin a line of its own."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t") if "\n" in text or "\t" in text else text


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
