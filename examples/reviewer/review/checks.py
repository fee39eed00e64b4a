"""The linter and the tests of what changed."""

import ast
import json
import shutil
import sys
from pathlib import Path, PurePosixPath

from review.git import Change
from review.process import run
from review.report import Finding, Outcome, TestRun

TEST_SECONDS = 120.0
TEST_FILES = 20


async def lint(tree: Path, change: Change) -> list[Finding]:
    """Findings on changed lines of changed Python files: by ruff where it is installed, else what Python's own parser refuses."""
    files = [file for file in change.files if file.endswith(".py") and (tree / file).is_file()]
    if not files:
        return []
    ruff = shutil.which("ruff")
    if ruff is None:
        return [finding for file in files if (finding := _parse(tree, file)) is not None]
    argv = [ruff, "check", "--no-cache", "--exit-zero", "--output-format", "json", "--", *files]
    done = await run(argv, tree, merge=False)
    found = [_finding(tree, item) for item in json.loads(done.output or "[]")]
    return [finding for finding in found if finding.code == "syntax" or finding.line in change.lines.get(finding.file, ())]


def test_files(tree: Path, change: Change) -> list[str]:
    """The test files of the change: changed ones, and those named after a changed module; at most twenty, sorted."""
    changed = [PurePosixPath(file) for file in change.files if file.endswith(".py")]
    wanted = {f"test_{path.name}" for path in changed} | {path.name for path in changed if path.name.startswith("test_")}
    found = {path.relative_to(tree).as_posix() for path in tree.rglob("test_*.py") if path.name in wanted}
    return sorted(found)[:TEST_FILES]


async def run_tests(tree: Path, file: str) -> TestRun:
    """Run one test file with pytest where it is installed, else unittest; sources in the root or in `src` are found."""
    pytest = shutil.which("pytest")
    argv = [pytest, "-q", "--no-header", "-p", "no:cacheprovider", "--", file] if pytest else [sys.executable, "-m", "unittest", file]
    path = ":".join(str(folder) for folder in (tree, tree / "src") if folder.is_dir())
    try:
        done = await run(argv, tree, seconds=TEST_SECONDS, env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
    except TimeoutError:
        return TestRun(file=file, outcome="failed", seconds=TEST_SECONDS, tail=f"It took longer than {TEST_SECONDS:g} seconds.")
    return TestRun(file=file, outcome=_OUTCOMES.get(done.code, "not_run"), seconds=round(done.seconds, 2), tail=done.output[-1500:])


_OUTCOMES: dict[int, Outcome] = {0: "passed", 1: "failed"}
"""pytest's codes: above 1 the file could not be collected, a library that it needs is missing, say."""


def _finding(tree: Path, item: dict[str, object]) -> Finding:
    location = item.get("location")
    row = location.get("row", 0) if isinstance(location, dict) else 0
    file = Path(str(item.get("filename")))
    relative = file.resolve().relative_to(tree.resolve()).as_posix() if file.is_absolute() else file.as_posix()
    return Finding(file=relative, line=row, code=str(item.get("code") or "syntax"), message=str(item.get("message")))


def _parse(tree: Path, file: str) -> Finding | None:
    try:
        ast.parse((tree / file).read_bytes(), file)
    except SyntaxError as error:
        return Finding(file=file, line=error.lineno or 0, code="syntax", message=error.msg)
    return None
