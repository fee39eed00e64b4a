"""Typed questions to people, and their answers: shapes, limits and checks. SPEC [Q1], [Q2].

Pure functions: the guest checks when it asks, the server again when it stores, and answers are checked against the stored question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, cast

from helmr.protocol import jsontext
from helmr.protocol.content import HumanContent, normalize
from helmr.protocol.errors import AnswerInvalid, ContentInvalid, ContentLimitExceeded, InvalidValue
from helmr.protocol.limits import (
    ANSWER_BYTES,
    ANSWER_TEXT_BYTES,
    CONTENT_BYTES,
    OPTION_DESCRIPTION_BYTES,
    OPTION_ID_BYTES,
    OPTION_LABEL_BYTES,
    QUESTION_OPTIONS,
    RESPONSE_ID_BYTES,
)


class Option(TypedDict):
    """One thing to choose; `value` is any JSON, and comes back with the choice."""

    id: str
    label: str
    value: Any
    description: NotRequired[str]


class TextAnswerSpec(TypedDict):
    type: Literal["text"]


class ChoiceAnswerSpec(TypedDict):
    type: Literal["choice"]
    options: Sequence[Option]
    multiple: NotRequired[bool]
    allow_text: NotRequired[bool]


class TextQuestion(TypedDict):
    prompt: HumanContent
    answer: TextAnswerSpec


class ChoiceQuestion(TypedDict):
    prompt: HumanContent
    answer: ChoiceAnswerSpec


Question: TypeAlias = TextQuestion | ChoiceQuestion


class TextAnswer(TypedDict):
    type: Literal["text"]
    text: str


class Selection(TypedDict):
    id: str
    value: Any


class ChoiceAnswer(TypedDict):
    """Selections in the order in which the question declares its options, and custom text where that was allowed."""

    type: Literal["choice"]
    selections: Sequence[Selection]
    text: NotRequired[str]


Answer: TypeAlias = TextAnswer | ChoiceAnswer


def normalize_question(value: object) -> tuple[dict[str, Any], bytes]:
    """The question in its one stored form, and its encoding. Raises `ContentInvalid`, and `ContentLimitExceeded` past a limit [Q2]."""
    question = _members(value, {"prompt", "answer"}, "A question", ContentInvalid)
    prompt, _ = normalize(question["prompt"])
    found = {"prompt": prompt, "answer": _answer_spec(question["answer"])}
    data = jsontext.dumps(found)
    if len(data) > CONTENT_BYTES:
        raise ContentLimitExceeded(f"The question is {len(data)} bytes; at most {CONTENT_BYTES} are allowed.")
    return found, data


def _answer_spec(value: object) -> dict[str, Any]:
    kind = cast("Mapping[str, object]", value).get("type") if isinstance(value, Mapping) else None
    value = cast("object", value)
    if kind == "text":
        _members(value, {"type"}, "A text answer", ContentInvalid)
        return {"type": "text"}
    if kind != "choice":
        raise ContentInvalid('A question\'s answer is {"type": "text"} or {"type": "choice", "options": [...]}.')
    spec = _members(value, {"type", "options", "multiple", "allow_text"}, "A choice", ContentInvalid, optional={"multiple", "allow_text"})
    options = spec["options"]
    if not isinstance(options, (list, tuple)):
        raise ContentInvalid("A choice's options are a list.")
    listed = cast("Sequence[object]", options)
    if len(listed) > QUESTION_OPTIONS:
        raise ContentLimitExceeded(f"The question has {len(listed)} options; at most {QUESTION_OPTIONS} are allowed.")
    found: dict[str, Any] = {"type": "choice", "options": [_option(item, index) for index, item in enumerate(listed)]}
    for flag in ("multiple", "allow_text"):
        if not isinstance(spec.get(flag, False), bool):
            raise ContentInvalid(f"A choice's {flag} is true or false.")
        if spec.get(flag):
            found[flag] = True
    ids = [option["id"] for option in found["options"]]
    if len(set(ids)) != len(ids):
        raise ContentInvalid("Two options of the question have the same id.")
    if not ids and not found.get("allow_text"):
        raise ContentInvalid("A choice without options needs allow_text.")
    return found


def _option(value: object, index: int) -> dict[str, Any]:
    where = f"Option {index + 1}"
    option = _members(value, {"id", "label", "value", "description"}, where, ContentInvalid, optional={"description"})
    for name, limit in (("id", OPTION_ID_BYTES), ("label", OPTION_LABEL_BYTES), ("description", OPTION_DESCRIPTION_BYTES)):
        text = option.get(name, "")
        if not isinstance(text, str) or (name != "description" and not text.strip()):
            raise ContentInvalid(f"{where} needs a text as its {name}.")
        if _size(text) > limit:
            raise ContentLimitExceeded(f"{where} has a {name} over {limit} bytes.")
    jsontext.check(option["value"])
    return option


def check_answer(question: Mapping[str, Any], value: object) -> tuple[dict[str, Any], bytes]:
    """The answer in its stored form, and its encoding, for a normalized question. Raises `AnswerInvalid` saying what does not fit.

    A choice names exact ids and their exact values in declaration order, without duplicates, several only with `multiple`; it has at
    least one selection or (with `allow_text`) non-empty text.
    """
    spec = question["answer"]
    found = _text_answer(value) if spec["type"] == "text" else _choice_answer(spec, value)
    try:
        data = jsontext.dumps(found)
    except ContentInvalid as error:
        raise AnswerInvalid(error.detail) from None
    if len(data) > ANSWER_BYTES:
        raise AnswerInvalid(f"The answer is {len(data)} bytes; at most {ANSWER_BYTES} are allowed.")
    return found, data


def text_answer(text: str) -> TextAnswer:
    """The answer to a text question."""
    return {"type": "text", "text": text}


def choice_answer(question: Mapping[str, Any], ids: Sequence[str], text: str | None = None) -> ChoiceAnswer:
    """The answer that chooses the options with these ids, whatever their order, and says `text` beside them.

    `question` is a question in its stored form. Raises `AnswerInvalid` for an id that it does not have, and when it asks for a text.
    """
    spec = question["answer"]
    if spec["type"] != "choice":
        raise AnswerInvalid("The question asks for a text; there is nothing to choose.")
    options: Sequence[Mapping[str, Any]] = spec["options"]
    unknown = sorted(set(ids) - {option["id"] for option in options})
    if unknown:
        raise AnswerInvalid(f"The question has no option {_brief(unknown[0])}.")
    found: ChoiceAnswer = {
        "type": "choice",
        "selections": [{"id": option["id"], "value": option["value"]} for option in options if option["id"] in ids],
    }
    if text:
        found["text"] = text
    return found


def check_response_id(value: str) -> None:
    """Raise `InvalidValue` unless `value` can name one person's act of answering [Q3]."""
    if not 1 <= _size(value) <= RESPONSE_ID_BYTES or "\0" in value:
        raise InvalidValue(f"A response id is 1 to {RESPONSE_ID_BYTES} bytes of UTF-8, without NUL.")


def _text_answer(value: object) -> dict[str, Any]:
    answer = _members(value, {"type", "text"}, "The answer to a text question", AnswerInvalid)
    if answer["type"] != "text" or not isinstance(answer["text"], str) or not answer["text"]:
        raise AnswerInvalid('This question takes {"type": "text", "text": "..."} with some text.')
    return {"type": "text", "text": answer["text"]}


def _choice_answer(spec: Mapping[str, Any], value: object) -> dict[str, Any]:
    answer = _members(value, {"type", "selections", "text"}, "The answer to a choice", AnswerInvalid, optional={"text"})
    if answer["type"] != "choice" or not isinstance(answer["selections"], (list, tuple)):
        raise AnswerInvalid('This question takes {"type": "choice", "selections": [{"id", "value"}]}.')
    selections = _selections(spec, cast("Sequence[object]", answer["selections"]))
    found: dict[str, Any] = {"type": "choice", "selections": selections}
    text = answer.get("text", "")
    if not isinstance(text, str) or (text and not spec.get("allow_text")):
        raise AnswerInvalid("This question takes no text of one's own.")
    if _size(text) > ANSWER_TEXT_BYTES:
        raise AnswerInvalid(f"The text is over {ANSWER_TEXT_BYTES} bytes.")
    if text:
        found["text"] = text
    if not selections and not text:
        raise AnswerInvalid("The answer selects nothing and says nothing.")
    return found


def _selections(spec: Mapping[str, Any], values: Sequence[object]) -> list[dict[str, Any]]:
    """What was selected. Values are compared last, each once: they are large, and an answer may repeat anything."""
    places = {option["id"]: place for place, option in enumerate(spec["options"])}
    if len(values) > len(places):
        raise AnswerInvalid(f"The answer has {len(values)} selections; the question has {len(places)} options.")
    selections = [_members(value, {"id", "value"}, "A selection", AnswerInvalid) for value in values]
    for selection in selections:
        if not isinstance(selection["id"], str) or selection["id"] not in places:
            raise AnswerInvalid(f"The question has no option {_brief(selection['id'])}.")
    if any(places[later["id"]] <= places[earlier["id"]] for earlier, later in pairwise(selections)):
        raise AnswerInvalid("Selections are named once each, in the order of the question's options.")
    if len(selections) > 1 and not spec.get("multiple"):
        raise AnswerInvalid("This question takes one selection.")
    for selection in selections:
        if not _same_json(spec["options"][places[selection["id"]]]["value"], selection["value"]):
            raise AnswerInvalid(f"The value of the selection {selection['id']!r} is another than the question's.")
    return [{"id": selection["id"], "value": spec["options"][places[selection["id"]]]["value"]} for selection in selections]


def _same_json(one: object, other: object) -> bool:
    try:
        return jsontext.canonical(one) == jsontext.canonical(other)
    except ContentInvalid:
        return False


def _brief(value: object) -> str:
    """What somebody sent, as a refusal repeats it."""
    text = repr(value)
    return text if len(text) <= 100 else text[:99] + "\u2026"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _members(
    value: object,
    names: set[str],
    what: str,
    error: type[ContentInvalid] | type[AnswerInvalid],
    *,
    optional: set[str] | frozenset[str] = frozenset(),
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise error(f"{what} is an object with {', '.join(sorted(names - optional))}.")
    members = cast("Mapping[object, Any]", value)
    for name in members:
        if name not in names:
            raise error(f"{what} has no member {_brief(name)}.")
    for name in sorted(names - optional):
        if name not in members:
            raise error(f"{what} needs the member {name}.")
    return {str(name): member for name, member in members.items()}
