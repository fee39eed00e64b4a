"""The rules of Sessions, Events and Questions that tests answer for, each by a test that fails when the rule is broken.

A test cites its rules in its docstring or in a comment: `[S11]`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

RULES: Final = (
    *(f"S{number}" for number in range(1, 25)),
    *(f"E{number}" for number in range(1, 7)),
    *(f"Q{number}" for number in range(1, 6)),
)

_CITED: Final = re.compile(r"\[([SEQ])(\d+)\](?:-\[\1(\d+)\])?")


def cited_by(folder: Path) -> dict[str, set[str]]:
    """For each rule, the tests below `folder` that cite it, as `file::test`. A citation at the head of a file is none of a test."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        for test in _tests(ast.parse(source)):
            for rule in _rules(ast.get_source_segment(source, test) or ""):
                found.setdefault(rule, set()).add(f"{path.relative_to(folder)}::{test.name}")
    return found


def _tests(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            yield node


def _rules(text: str) -> Iterator[str]:
    for letter, first, last in _CITED.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"
