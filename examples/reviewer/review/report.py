"""What a review is: the result's type, and its words."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from review.git import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    file: str
    line: int
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    file: str
    passed: bool
    seconds: float
    tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The result of a Turn."""

    range: str
    verdict: Literal["clean", "findings", "failing", "unreadable"]
    commits: int = 0
    files: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    tests: tuple[TestRun, ...] = ()
    problem: str | None = None


def summarize(change: Change, findings: list[Finding], tests: list[TestRun]) -> Review:
    """The review of a change: failing tests weigh more than findings."""
    failing = any(not run.passed for run in tests)
    return Review(
        range=change.range,
        verdict="failing" if failing else "findings" if findings else "clean",
        commits=len(change.commits),
        files=change.files,
        findings=tuple(findings),
        tests=tuple(tests),
    )


def as_text(review: Review) -> str:
    """The review in words."""
    lines = [f"Review of {review.range}: {review.verdict}.", f"{review.commits} commits change {len(review.files)} files."]
    if review.findings:
        lines.append(f"{len(review.findings)} findings on changed lines:")
        lines += [f"  {item.file}:{item.line}: {item.code} {item.message}" for item in review.findings[:20]]
    if review.tests:
        failed = [run for run in review.tests if not run.passed]
        lines.append(f"{len(review.tests)} test files ran, {len(failed)} failed.")
        lines += [f"  {run.file}:\n{_indented(run.tail)}" for run in failed[:3]]
    else:
        lines.append("No test file belongs to this change.")
    return "\n".join(lines) + "\n"


def as_json(review: Review) -> dict[str, Any]:
    """The review for programs, without the long tails of passing tests."""
    value = asdict(review)
    value["tests"] = [{**asdict(run), "tail": "" if run.passed else run.tail} for run in review.tests]
    return value


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-15:])
