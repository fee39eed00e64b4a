"""The layers of docs/architecture.md hold: the import contracts, and that no module outgrows its noun (STYLE 1, 2)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "helmr").rglob("*.py"))
LONGEST = 400


def test_import_contracts_are_kept() -> None:
    lint = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", lint], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


def test_a_module_is_one_noun() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in SOURCES}
    long = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in lengths.items() if lines > LONGEST]
    assert long == [], "look for the second noun"


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "helpers", "manager", "common", "base", "misc"}
    assert [str(path.relative_to(ROOT)) for path in SOURCES if path.stem in empty] == []
