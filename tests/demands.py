"""What users of comparable systems complain about, by the ids of that list: which of its entries tests answer for, and which wait.

A test that would fail if we had the fault of an entry is marked with it: `@pytest.mark.ud("UD-12")`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

TESTED: Final = tuple(
    f"UD-{number:02}"
    for number in (
        *(2, 4, 6, 7, 8, 11, 12),  # Turns: order, admission, messages
        *(15, 16, 19, 21),  # workers, leases, crashes
        *(23, 24, 25),  # holds, interrupt, resume
        *(27, 30, 32),  # cancellation and process trees
        *(35, 37, 39, 40, 42, 44, 45, 46),  # Computers
        *(49, 51, 52, 53, 54, 55, 56, 58, 59),  # events and streams
        *(61, 62, 63, 64),  # questions
        *(71, 72, 73, 74, 75),  # triggers
        *(84, 85, 87, 88),  # PostgreSQL
        *(89, 91),  # idempotency
        *(93, 94),  # Deployments
        *(95, 97, 98),  # safety
        *(100, 101, 102, 103),  # CLI, SDK, native agents
    )
)

LATER: Final = {
    **dict.fromkeys(("UD-34",), "saves, recovery of Computers and their own API"),
    **dict.fromkeys(("UD-67", "UD-68", "UD-69"), "Slack"),
    **dict.fromkeys(("UD-77", "UD-78", "UD-79", "UD-81"), "delegation by Runtime MCP"),
    "UD-82": "the scenarios with notices dropped, behind a pooler",
}
"""What no test has to answer for yet, and what it waits for. A test may be marked with one of them already."""


def marked_by(folder: Path) -> dict[str, set[str]]:
    """For each entry, the tests below `folder` that are marked with it, as `file::test`."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.ud":
                        for argument in decorator.args:
                            entry = argument.value if isinstance(argument, ast.Constant) else ast.unparse(argument)
                            found.setdefault(str(entry), set()).add(f"{path.relative_to(folder)}::{node.name}")
    return found
