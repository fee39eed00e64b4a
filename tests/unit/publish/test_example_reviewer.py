"""The reviewer example does what it says, with real git, a real linter and real tests; only the Turn is the test's own."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from helmr.sdk.loading import load_module
from helmr.sdk.schema import encoded

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "reviewer"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The agent file, with this interpreter's tools on the PATH."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    yield load_module(EXAMPLE, "agents/reviewer.py")
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


class RecordingTurn:
    def __init__(self, asked: str) -> None:
        self.input = [{"type": "text", "text": asked}]
        self.output = self
        self.written = ""
        self.response: Any = None

    async def write(self, value: str) -> None:
        self.written += value

    async def respond(self, value: Any) -> None:
        self.response = value


async def review(module: ModuleType, repository: Path, asked: str) -> tuple[RecordingTurn, dict[str, Any]]:
    turn = RecordingTurn(asked)
    state = SimpleNamespace(repository=repository, origin="test")
    result = await module.reviewer.turn(turn, SimpleNamespace(init_result=state))
    schema = module.reviewer.result_schema
    return turn, encoded(schema, await schema.validate(result))


async def test_it_finds_what_is_wrong_with_the_sample(module: ModuleType, tmp_path: Path) -> None:
    prepared = await module.workspace.prepare(tmp_path / "repo", tmp_path / "nothing")
    assert prepared.origin == "sample"
    turn, result = await review(module, prepared.repository, "HEAD~1..HEAD")
    assert result["verdict"] == "findings"
    assert [(one["file"], one["line"], one["code"]) for one in result["findings"]] == [("shop/price.py", 1, "F401")]
    assert [(one["file"], one["outcome"]) for one in result["tests"]] == [("tests/test_price.py", "passed")]
    assert "Give a discount" in turn.written
    words, data = turn.response
    assert words["text"].startswith("Review of ") and data["value"]["verdict"] == "findings"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repo"]


async def test_a_failing_test_weighs_more_than_findings_and_is_told(module: ModuleType, tmp_path: Path) -> None:
    prepared = await module.workspace.prepare(tmp_path / "repo", tmp_path / "nothing")
    (prepared.repository / "shop/price.py").write_text("def total(prices):\n    return 0\n", encoding="utf-8")
    (prepared.repository / "tests/test_gone.py").write_text("import not_a_module\n", encoding="utf-8")
    who = ("-c", "user.name=x", "-c", "user.email=x@example.invalid")
    for arguments in (("add", "-A"), (*who, "commit", "-q", "-m", "Break it")):
        subprocess.run(["git", "-C", str(prepared.repository), *arguments], check=True, timeout=30)
    turn, result = await review(module, prepared.repository, "HEAD")
    outcomes = {one["file"]: one["outcome"] for one in result["tests"]}
    assert (result["verdict"], outcomes) == ("failing", {"tests/test_gone.py": "not_run", "tests/test_price.py": "failed"})
    assert "not_a_module" in turn.response[0]["text"]


async def test_a_change_whose_tests_can_not_be_run_is_not_called_clean(module: ModuleType, tmp_path: Path) -> None:
    prepared = await module.workspace.prepare(tmp_path / "repo", tmp_path / "nothing")
    (prepared.repository / "tests/test_gone.py").write_text("import not_a_module\n\nassert not_a_module\n", encoding="utf-8")
    who = ("-c", "user.name=x", "-c", "user.email=x@example.invalid")
    for arguments in (("add", "-A"), (*who, "commit", "-q", "-m", "Test what is not there")):
        subprocess.run(["git", "-C", str(prepared.repository), *arguments], check=True, timeout=30)
    _, result = await review(module, prepared.repository, "HEAD")
    assert result["verdict"] == "unverified"


@pytest.mark.parametrize("asked", ["", "nope..HEAD", "--output=x", "HEAD; ls", "HEAD~99"])
async def test_a_range_that_git_does_not_know_is_an_answer(module: ModuleType, tmp_path: Path, asked: str) -> None:
    prepared = await module.workspace.prepare(tmp_path / "repo", tmp_path / "nothing")
    turn, result = await review(module, prepared.repository, asked)
    assert (result["verdict"], turn.written) == ("unreadable", "")
    assert turn.response.startswith("I can't review")


async def test_a_later_process_finds_the_clone_and_brings_it_up_to_date(module: ModuleType, tmp_path: Path) -> None:
    origin = (await module.workspace.prepare(tmp_path / "origin", tmp_path / "nothing")).repository
    carried, who = tmp_path / "carried", ("-c", "user.name=x", "-c", "user.email=x@example.invalid")
    carried.mkdir()

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(origin), *arguments], check=True, timeout=30)

    git("bundle", "create", "-q", str(carried / "repo.bundle"), "HEAD", "--branches")
    prepared = await module.workspace.prepare(tmp_path / "repo", carried)
    assert prepared.origin == "bundle"
    git(*who, "commit", "-q", "--allow-empty", "-m", "Later")
    git("bundle", "create", "-q", str(carried / "repo.bundle"), "HEAD", "--branches")
    await module.workspace.prepare(tmp_path / "repo", carried)
    turn, _ = await review(module, prepared.repository, "HEAD")
    assert "Later" in turn.written


async def test_a_cancelled_turn_leaves_no_process(module: ModuleType, tmp_path: Path, bounded: Callable[[], asyncio.Timeout]) -> None:
    pipe = tmp_path / "told"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDWR)
    run = sys.modules["review.process"].run
    task = asyncio.ensure_future(run(["sh", "-c", f"sleep 1000 & echo $! > {pipe}; wait"], tmp_path))
    child = int((await asyncio.to_thread(os.read, reading, 64)).decode())
    os.close(reading)
    ended = os.pidfd_open(child)
    task.cancel()
    async with bounded():
        with pytest.raises(asyncio.CancelledError):
            await task
    readable, _, _ = await asyncio.to_thread(select.select, [ended], [], [], 5.0)
    os.close(ended)
    assert readable, "the grandchild is alive five seconds after the cancellation"
