"""Helpers that ask a person and give back a plain value. SPEC [Q1]. The shapes are in `helmr.protocol.questions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, cast, overload

from helmr.protocol.content import HumanContent
from helmr.protocol.questions import ChoiceQuestion, Option, TextQuestion
from helmr.sdk.signal import AbortSignal
from helmr.sdk.turn import Turn

Value = TypeVar("Value")


async def ask_text(turn: Turn[Any], prompt: HumanContent, *, signal: AbortSignal | None = None) -> str:
    """Ask for a text. Raises `AskCancelled` when the question ends without an answer: absence is never consent [Q3]."""
    question: TextQuestion = {"prompt": prompt, "answer": {"type": "text"}}
    answered = await turn.ask(question, signal=signal)
    return cast("Mapping[str, str]", answered.answer)["text"]


@overload
async def ask_choice(turn: Turn[Any], prompt: HumanContent, options: Sequence[str], *, signal: AbortSignal | None = None) -> str: ...
@overload
async def ask_choice(
    turn: Turn[Any], prompt: HumanContent, options: Mapping[str, Value], *, signal: AbortSignal | None = None
) -> Value: ...
@overload
async def ask_choice(
    turn: Turn[Any], prompt: HumanContent, options: Sequence[str], *, multiple: Literal[True], signal: AbortSignal | None = None
) -> list[str]: ...
@overload
async def ask_choice(
    turn: Turn[Any], prompt: HumanContent, options: Mapping[str, Value], *, multiple: Literal[True], signal: AbortSignal | None = None
) -> list[Value]: ...
async def ask_choice(
    turn: Turn[Any],
    prompt: HumanContent,
    options: Sequence[str] | Mapping[str, Any],
    *,
    multiple: bool = False,
    signal: AbortSignal | None = None,
) -> Any:
    """Ask to choose among labels (or a mapping of labels to JSON values); returns the value chosen, with `multiple` a list of them.

    Raises `AskCancelled` as `ask_text` does, `TypeError` for a str as options, `ContentLimitExceeded` past 100 options.
    """
    if isinstance(options, str):
        raise TypeError("ask_choice() takes a list of labels, or a mapping of labels to values.")
    pairs = options if isinstance(options, Mapping) else {label: label for label in options}
    listed: list[Option] = [{"id": str(place), "label": label, "value": value} for place, (label, value) in enumerate(pairs.items(), 1)]
    question: ChoiceQuestion = {"prompt": prompt, "answer": {"type": "choice", "options": listed, "multiple": multiple}}
    answered = await turn.ask(question, signal=signal)
    selections = cast("Mapping[str, Sequence[Mapping[str, Any]]]", answered.answer)["selections"]
    values = [pairs[listed[int(selection["id"]) - 1]["label"]] for selection in selections]
    return values if multiple else values[0]
