"""What a type checker must infer, and the exact errors that it must report. SPEC [A3].

The other files of this folder are not run: pyright reads them. `assert_type` pins what is inferred; a comment `# error: rule` (several
divided by commas) on a line names exactly what must be reported there, and nothing else may be reported anywhere.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(path for path in HERE.glob("*.py") if path != Path(__file__))
EXPECTED = re.compile(r"# error: ([A-Za-z, ]+)$")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def reported() -> dict[Path, dict[int, set[str]]]:
    """Every error and warning of pyright, strict, by file and line."""
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--project",
        str(HERE / "pyrightconfig.json"),
        "--pythonpath",
        sys.executable,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[Path, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for item in json.loads(done.stdout)["generalDiagnostics"]:
        if item["severity"] in ("error", "warning"):
            found[Path(item["file"])][item["range"]["start"]["line"] + 1].add(item.get("rule", "syntax"))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_pyright_reports_exactly_the_errors_that_the_file_marks(file: Path, reported: dict[Path, dict[int, set[str]]]) -> None:
    expected: dict[int, set[str]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if match := EXPECTED.search(line):
            expected[number] = {rule.strip() for rule in match[1].split(",")}
    assert expected, "a file of type tests marks at least one error"
    assert dict(reported[file]) == expected


MADE = re.compile(r"helmr\.sdk\.turn\.Sync(Turn|Output)(\.\w+)?")
"""The blocking Turn is made from the asynchronous one; its methods have inferred types, which `authoring_agents.py` pins."""


def test_the_public_surface_of_authoring_is_completely_typed() -> None:
    """STYLE 15: no exported symbol has an unknown, partially unknown or merely inferred type."""
    source = str(HERE.parents[1] / "src")
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--pythonpath",
        sys.executable,
        "--verifytypes",
        "helmr.sdk",
        "--ignoreexternal",
        "--outputjson",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, cwd=HERE, env={**os.environ, "PYTHONPATH": source}
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    ours = [symbol for symbol in symbols if symbol["isExported"]]
    assert len(ours) > 100
    vague = {symbol["name"] for symbol in ours if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]}
    assert {name for name in vague if not MADE.fullmatch(name)} == set()


def test_there_are_type_tests_of_authoring_and_of_the_client() -> None:
    names = {path.stem for path in FILES}
    assert any(name.startswith("authoring") for name in names)
    assert any(name.startswith("client") for name in names)
