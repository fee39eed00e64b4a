"""Every complaint of the list that applies now is answered for by a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.demands import LATER, TESTED, marked_by

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def marked() -> dict[str, set[str]]:
    return marked_by(TESTS)


@pytest.mark.parametrize("entry", TESTED)
def test_the_entry_is_marked_at_a_test(marked: dict[str, set[str]], entry: str) -> None:
    assert marked.get(entry), f"no test is marked with {entry}"


def test_no_test_is_marked_with_what_is_no_entry(marked: dict[str, set[str]]) -> None:
    assert marked.keys() <= set(TESTED) | LATER.keys()
    assert not set(TESTED) & LATER.keys()


def test_a_mark_counts_at_a_test_and_nowhere_else(tmp_path: Path) -> None:
    mark = '@pytest.mark.ud("UD-%s")\n'
    text = mark % "01" + "def helper():\n    pass\n\n" + mark % "02" + mark % "03" + "async def test_it():\n    ...\n"
    (tmp_path / "test_some.py").write_text(text, encoding="utf-8")
    assert marked_by(tmp_path) == {entry: {"test_some.py::test_it"} for entry in ("UD-02", "UD-03")}
