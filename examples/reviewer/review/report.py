"""What a review is: the result's type, and its words."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from review.git import Change

Outcome = Literal["passed", "failed", "not_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    file: str
    line: int
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    file: str
    outcome: Outcome
    seconds: float
    tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The result of a Turn."""

    range: str
    verdict: Literal["clean", "findings", "failing", "unverified", "unreadable"]
    commits: int = 0
    files: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    tests: tuple[TestRun, ...] = ()
    problem: str | None = None


def summarize(change: Change, findings: list[Finding], tests: list[TestRun]) -> Review:
    """The review of a change: failing tests weigh more than findings, and tests that could not be run leave it unverified."""
    failing = any(run.outcome == "failed" for run in tests)
    not_run = any(run.outcome == "not_run" for run in tests)
    return Review(
        range=change.range,
        verdict="failing" if failing else "findings" if findings else "unverified" if not_run else "clean",
        commits=len(change.commits),
        files=change.files,
        findings=tuple(findings),
        tests=tuple(tests),
    )


def as_text(review: Review) -> str:
    """The review in words."""
    lines = [f"Review of {review.range}: {review.verdict}.", f"{_count(review.commits, 'commit')}, {_count(len(review.files), 'file')}."]
    if review.findings:
        lines.append(f"{_count(len(review.findings), 'finding')} on changed lines:")
        lines += [f"  {item.file}:{item.line}: {item.code} {item.message}" for item in review.findings[:20]]
    if review.tests:
        counts = {outcome: sum(run.outcome == outcome for run in review.tests) for outcome in ("passed", "failed", "not_run")}
        lines.append(f"Test files: {counts['passed']} passed, {counts['failed']} failed, {counts['not_run']} could not be run.")
        unhappy = [run for run in review.tests if run.outcome != "passed"]
        lines += [f"  {run.file} ({run.outcome}):\n{_indented(run.tail)}" for run in unhappy[:3]]
    else:
        lines.append("No test file belongs to this change.")
    return "\n".join(lines) + "\n"


def as_json(review: Review) -> dict[str, Any]:
    """The review for programs, without the long tails of passing tests."""
    value = asdict(review)
    value["tests"] = [{**asdict(run), "tail": "" if run.outcome == "passed" else run.tail} for run in review.tests]
    return value


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-15:])
