"""Every rule of Sessions, Events and Questions is answered for by a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rules import RULES, cited_by

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cited() -> dict[str, set[str]]:
    return cited_by(TESTS)


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_is_cited_by_a_test(cited: dict[str, set[str]], rule: str) -> None:
    assert cited.get(rule), f"no test cites [{rule}]"


def test_a_citation_counts_in_a_test_and_nowhere_else(tmp_path: Path) -> None:
    text = '"""(S1)"""\n\ndef helper():\n    """(S2)"""\n\ndef test_it():\n    """(S3), (E1)-(E3)"""\n    # (Q5)\n    helper()\n'
    (tmp_path / "test_some.py").write_text(text.replace("(", "[").replace(")", "]").replace("[]", "()"), encoding="utf-8")
    assert cited_by(tmp_path) == {rule: {"test_some.py::test_it"} for rule in ("S3", "E1", "E2", "E3", "Q5")}
