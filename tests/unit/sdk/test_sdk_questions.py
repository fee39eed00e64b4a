"""Questions, answers and the helpers that ask. SPEC [Q1], [Q2]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from helmr import ask_choice, ask_text
from helmr.protocol import questions
from helmr.protocol.errors import AnswerInvalid, ContentInvalid, ContentLimitExceeded, HelmrError
from helmr.protocol.questions import check_answer, normalize_question


def choice(**members: Any) -> dict[str, Any]:
    options = [
        {"id": "a", "label": "A", "value": 1},
        {"id": "b", "label": "B", "value": {"x": [1.0]}},
        {"id": "c", "label": "C", "value": None},
    ]
    return {"prompt": "which?", "answer": {"type": "choice", "options": options, **members}}


def stored(question: Mapping[str, Any]) -> dict[str, Any]:
    return normalize_question(question)[0]


def picked(*selections: tuple[str, Any], **members: Any) -> dict[str, Any]:
    return {"type": "choice", "selections": [{"id": id, "value": value} for id, value in selections], **members}


def test_a_question_has_one_stored_form() -> None:
    question, data = normalize_question({"prompt": "why?", "answer": {"type": "text"}})
    assert question == {"prompt": [{"type": "text", "text": "why?"}], "answer": {"type": "text"}}
    assert data == b'{"prompt":[{"type":"text","text":"why?"}],"answer":{"type":"text"}}'
    assert stored(question) == question
    assert stored(choice(multiple=False, allow_text=True))["answer"].keys() == {"type", "options", "allow_text"}


@pytest.mark.parametrize(
    "question",
    [
        None,
        {},
        {"prompt": "x"},
        {"prompt": "x", "answer": {"type": "text"}, "more": 1},
        {"prompt": 3, "answer": {"type": "text"}},
        {"prompt": "x", "answer": {"type": "text", "options": []}},
        {"prompt": "x", "answer": {"type": "number"}},
        {"prompt": "x", "answer": "text"},
        {"prompt": "x", "answer": {"type": "choice"}},
        {"prompt": "x", "answer": {"type": "choice", "options": []}},
        {"prompt": "x", "answer": {"type": "choice", "options": "ab"}},
        {"prompt": "x", "answer": {"type": "choice", "options": [{"id": "a", "label": "A"}]}},
        {"prompt": "x", "answer": {"type": "choice", "options": [{"id": "", "label": "A", "value": 1}]}},
        {"prompt": "x", "answer": {"type": "choice", "options": [{"id": "a", "label": " ", "value": 1}]}},
        {"prompt": "x", "answer": {"type": "choice", "options": [{"id": "a", "label": "A", "value": float("inf")}]}},
        {"prompt": "x", "answer": {"type": "choice", "options": [{"id": "a", "label": "A", "value": 1}] * 2}},
        choice(multiple="yes"),
        choice(required=True),
    ],
)
def test_a_question_of_another_shape_is_refused(question: object) -> None:
    with pytest.raises(ContentInvalid):
        normalize_question(question)


def sized(members: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": "x", "answer": {"type": "choice", "options": [{"id": "a", "label": "A", "value": 1, **members}]}}


@pytest.mark.parametrize(("member", "limit"), [("id", 128), ("label", 256), ("description", 2048)])
def test_an_options_texts_have_limits_in_bytes(member: str, limit: int) -> None:
    stored(sized({member: "é" * (limit // 2)}))
    with pytest.raises(ContentLimitExceeded, match=member):
        stored(sized({member: "é" * (limit // 2) + "x"}))


def test_a_question_has_at_most_a_hundred_options_and_256_kib() -> None:
    options = [{"id": str(n), "label": "x", "value": n} for n in range(101)]
    stored({"prompt": "x", "answer": {"type": "choice", "options": options[:100]}})
    with pytest.raises(ContentLimitExceeded, match="101 options"):
        stored({"prompt": "x", "answer": {"type": "choice", "options": options}})
    with pytest.raises(ContentLimitExceeded, match="at most 262144"):
        stored(sized({"value": "x" * 262_144}))


@pytest.mark.parametrize(
    ("members", "answer", "kept"),
    [
        ({}, picked(("a", 1)), picked(("a", 1))),
        ({}, picked(("b", {"x": [1.0]})), picked(("b", {"x": [1.0]}))),
        ({}, picked(("c", None)), picked(("c", None))),
        ({}, picked(("a", 1), text=""), picked(("a", 1))),
        ({"multiple": True}, picked(("a", 1), ("c", None)), picked(("a", 1), ("c", None))),
        ({"allow_text": True}, picked(text="own"), picked(text="own")),
        ({"allow_text": True}, picked(("a", 1), text="own"), picked(("a", 1), text="own")),
    ],
)
def test_an_answer_that_fits_is_kept(members: dict[str, Any], answer: dict[str, Any], kept: dict[str, Any]) -> None:
    assert check_answer(stored(choice(**members)), answer)[0] == kept


@pytest.mark.parametrize(
    ("members", "answer"),
    [
        ({}, picked()),
        ({}, picked(("a", 1), ("b", {"x": [1.0]}))),
        ({}, picked(("a", 1.0))),
        ({}, picked(("a", True))),
        ({}, picked(("a", 2))),
        ({}, picked(("b", {"x": [1]}))),
        ({}, picked(("z", 1))),
        ({}, picked(("a", 1), text="own")),
        ({}, {"type": "choice", "selections": [{"id": "a"}]}),
        ({}, {"type": "text", "text": "a"}),
        ({}, {"type": "choice", "selections": "a"}),
        ({}, None),
        ({"multiple": True}, picked(("c", None), ("a", 1))),
        ({"multiple": True}, picked(("a", 1), ("a", 1))),
        ({"multiple": True}, picked()),
        ({"allow_text": True}, picked(text="")),
        ({"allow_text": True}, picked(text="x" * 8193)),
        ({"allow_text": True}, picked(text="\ud800")),
        ({"allow_text": True}, picked(text=None)),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(members: dict[str, Any], answer: object) -> None:
    """[Q2]: exact ids and values, in declaration order, no duplicates, at least one selection or some text."""
    with pytest.raises(AnswerInvalid):
        check_answer(stored(choice(**members)), answer)


def test_an_answer_can_not_have_large_values_compared_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """[Q2]: an answer of two megabytes may repeat the largest option ten thousand times; shape, number and order are looked at first."""
    for large in ({"type": "text", "text": "x", "y" * 100_000: 1}, picked(("z" * 100_000, 1)), picked(("a", 1)) | {"y" * 100_000: 1}):
        with pytest.raises(AnswerInvalid) as refused:
            check_answer(stored(choice()), large)
        assert len(str(refused.value)) < 300, "a refusal repeats all that was sent"
    compared: list[object] = []
    monkeypatch.setattr(questions, "_same_json", lambda one, other: compared.append(one) or one == other)
    question = stored(choice(multiple=True))
    for hostile in (picked(*[("a", 1)] * 10_000), picked(("a", 1), ("a", 1)), picked(("b", 0), ("a", 1)), picked(("a", 1), ([], 1))):
        with pytest.raises(AnswerInvalid):
            check_answer(question, hostile)
    assert compared == []
    check_answer(question, picked(("a", 1), ("c", None)))
    assert compared == [1, None]


def test_a_text_answer_is_some_text_of_at_most_64_kib_encoded() -> None:
    question = stored({"prompt": "why?", "answer": {"type": "text"}})
    frame = len('{"type":"text","text":""}')
    longest = {"type": "text", "text": "x" * (65_536 - frame)}
    assert check_answer(question, longest)[0] == longest
    for wrong in (
        {"type": "text", "text": longest["text"] + "x"},
        {"type": "text", "text": ""},
        {"type": "text"},
        "because",
        picked(("a", 1)),
    ):
        with pytest.raises(AnswerInvalid):
            check_answer(question, wrong)


class Answered:
    def __init__(self, answer: Any) -> None:
        self.answer = answer


class ScriptedTurn:
    """A Turn whose person answers by the question's own checks."""

    def __init__(self, *ids: str, text: str = "") -> None:
        self.ids, self.text = ids, text

    async def ask(self, question: Mapping[str, Any], *, signal: object = None) -> Answered:
        normal, _ = normalize_question(question)
        if normal["answer"]["type"] == "text":
            return Answered(check_answer(normal, {"type": "text", "text": self.text})[0])
        values = {option["label"]: (option["id"], option["value"]) for option in normal["answer"]["options"]}
        return Answered(check_answer(normal, picked(*(values[label] for label in self.ids)))[0])


@pytest.mark.anyio
async def test_the_helpers_give_plain_values_back() -> None:
    assert await ask_text(ScriptedTurn(text="because"), "why?") == "because"  # type: ignore[arg-type]
    assert await ask_choice(ScriptedTurn("no"), "sure?", ["yes", "no"]) == "no"  # type: ignore[arg-type]
    assert await ask_choice(ScriptedTurn("yes"), "sure?", {"yes": True, "no": False}) is True  # type: ignore[arg-type]
    assert await ask_choice(ScriptedTurn("x", "z"), "which?", ["x", "y", "z"], multiple=True) == ["x", "z"]  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await ask_choice(ScriptedTurn(), "sure?", "yes")  # type: ignore[arg-type]
    with pytest.raises(HelmrError):
        await ask_choice(ScriptedTurn("a"), "which?", [str(n) for n in range(101)])  # type: ignore[arg-type]
