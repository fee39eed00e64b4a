"""The examples of `docs/reference/questions.md` compile, and its limits, codes and reasons are the code's."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import get_args

from helmr.protocol import errors, limits, states

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "questions.md").read_text(encoding="utf-8")


def test_the_examples_compile_and_their_imports_exist() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        compile(example, "questions.md", "exec")
        for module, names in re.findall(r"^from (\S+) import (.+)$", example, re.MULTILINE):
            for name in names.split(", "):
                assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_the_limits_are_those_of_the_code() -> None:
    """[Q2]."""
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", PAGE.split("## Limits")[1], re.MULTILINE))
    kib = limits.KIB
    assert rows["a question"] == f"{limits.CONTENT_BYTES // kib} KiB as stored, {limits.CONTENT_PARTS} parts of prompt"
    assert rows["options"] == str(limits.QUESTION_OPTIONS)
    assert rows["id, label, description of an option"] == (
        f"{limits.OPTION_ID_BYTES} bytes, {limits.OPTION_LABEL_BYTES} bytes, {limits.OPTION_DESCRIPTION_BYTES // kib} KiB"
    )
    assert rows["a text beside a choice"] == f"{limits.ANSWER_TEXT_BYTES // kib} KiB"
    assert rows["an answer"] == f"{limits.ANSWER_BYTES // kib} KiB as stored"
    assert rows["`response_id`"] == f"1 to {limits.RESPONSE_ID_BYTES} bytes"
    assert rows["output and questions of one Turn together"] == f"{limits.TURN_OUTPUT_BYTES // limits.MIB} MiB"


def test_the_codes_are_those_of_the_code() -> None:
    for kind in (errors.QuestionAlreadyResponded, errors.QuestionCancelled, errors.AnswerInvalid):
        assert f"{kind.status} `{kind.code}`" in PAGE


def test_every_reason_of_a_cancellation_is_on_the_page() -> None:
    told = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Events")[1].split("## Limits")[0], re.MULTILINE)
    assert told == ["reason", *get_args(states.QuestionReason)]
