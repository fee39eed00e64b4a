"""`docs/reference/errors.md` and `events.md` are what is declared; the declarations are whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from helmr.protocol import errors
from helmr.protocol.reference import PAGES, TURN_CODES
from helmr.protocol.states import EventKind, HoldKind, StopCause
from helmr.protocol.timeline import TIMELINE, misfits

DOCS = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_current(page: str) -> None:
    """`python -m helmr.protocol.reference PAGE > docs/reference/PAGE.md` writes it anew."""
    assert (DOCS / f"{page}.md").read_text(encoding="utf-8") == PAGES[page]()


def test_every_error_is_imported_from_one_place() -> None:
    """STYLE 10: the tree is drawn once, and a module of a branch is nobody's import."""
    assert sorted(kind.__name__ for kind in errors.declared()) == sorted(set(errors.__all__) - {"HelmrError", "by_code", "declared"})
    assert {kind for kind in errors.declared() if getattr(errors, kind.__name__) is not kind} == set()


def test_every_kind_of_event_is_declared_in_the_order_of_the_vocabulary() -> None:
    """[E1]"""
    assert list(TIMELINE) == list(get_args(EventKind))


def test_the_values_that_a_member_may_have_are_those_of_the_vocabulary() -> None:
    """[S11], [S16]"""
    for cause in get_args(StopCause):
        assert f"`{cause}`" in TIMELINE["turn.stopping"].always["cause"]
    for kind in get_args(HoldKind):
        assert f"`{kind}`" in TIMELINE["session.held"].always["kind"]


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("turn.queued", {"sequence": 1}, "lacks source"),
        ("turn.running", {"more": 1}, "has more"),
        ("turn.output", {"text": "x"}, "no list"),
        ("turn.failed", [], "no object"),
        ("turn.paused", {}, "unknown"),
    ],
)
def test_data_that_is_not_as_declared_is_found(kind: str, data: object, reason: str) -> None:
    (found,) = misfits([(kind, data)])
    assert reason in found


def test_data_that_is_as_declared_passes() -> None:
    assert misfits([("turn.running", {}), ("turn.output", []), ("turn.failed", {"code": "x", "message": "y"})]) == []


@pytest.mark.parametrize(
    "page", ["turns.md", "sessions.md", "events.md", "errors.md", "questions.md", "computers.md", "limits.md", "state-machines.md"]
)
def test_the_links_between_the_pages_lead_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (DOCS / target).exists(), target


def test_each_code_of_a_turn_is_explained_on_the_page_of_turns() -> None:
    text = (DOCS / "turns.md").read_text(encoding="utf-8")
    for code in TURN_CODES:
        assert f"`{code}`" in text
