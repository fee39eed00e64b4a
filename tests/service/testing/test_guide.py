"""The guide on testing, and the example with a test: what stands there runs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helmr import AgentContext, Turn, agent, ask_choice, ask_text, cron, image, template, text
from helmr.testing import POINTS, RuntimeFactory, SyncRuntimeFactory
from helmr.testing.faults import WHAT

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guides" / "testing.md").read_text()
computer = template(id="desk", image=image("desk").from_host())


@agent(id="reviewer", template=computer, max_turn_duration="1h")
async def reviewer(turn: Turn, ctx: AgentContext) -> dict[str, list[str]]:
    diff = "".join(part["text"] for part in turn.input)
    await turn.output.write("Reading\n")
    if "long" in diff:
        await asyncio.sleep(7200)
    return {"found": [line for line in diff.splitlines() if "TODO" in line]}


async def release(turn: Turn, ctx: AgentContext) -> str:
    """Asks only where somebody answers."""
    where = await ask_choice(turn, "Release where?", ["staging", "production"])
    return f"{where}: {await ask_text(turn, 'Why?')}"


async def release_silently(turn: Turn, ctx: AgentContext) -> str:
    return "released"


each_minute = cron("each-minute", "* * * * *", timezone="UTC", input=[text("Report.")])


def examples() -> dict[str, Callable[..., Any]]:
    """The guide's tests, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        code = block.replace("from agents.reviewer import reviewer\n", "")
        asks = "runtime.person" in code
        releaser = agent(id="releaser", template=computer, turn=release if asks else release_silently)
        scope: dict[str, Any] = {
            "reviewer": reviewer,
            "releaser": releaser,
            "reporter": agent(id="reporter", template=computer, turn=release_silently, triggers=[each_minute]),
            "computer": computer,
            "agent": agent,
            "text": text,
            "Turn": Turn,
            "AgentContext": AgentContext,
        }
        exec(compile(code, "testing.md", "exec", dont_inherit=True), scope)
        found |= {name: value for name, value in scope.items() if name.startswith("test_")}
    return found


def test_the_guide_shows_its_tests() -> None:
    assert len(examples()) == 7


@pytest.mark.parametrize("name", examples())
async def test_what_the_guide_shows_runs(name: str, helmr_runtime: RuntimeFactory, helmr_sync_runtime: SyncRuntimeFactory) -> None:
    example = examples()[name]
    if asyncio.iscoroutinefunction(example):
        await example(helmr_runtime)
    else:
        await asyncio.to_thread(example, helmr_sync_runtime)


def test_the_guide_names_every_fault_point() -> None:
    section = GUIDE.partition("The points are")[2].partition("`helmr.testing.POINTS`")[0]
    assert set(re.findall(r"`([a-z_.]+)`", section)) == set(WHAT)
    assert len(POINTS) == 2 * len(WHAT)


@pytest.mark.timeout(180)
def test_the_example_s_test_passes() -> None:
    """In a pytest of its own, as users run it, but without the plugins that only we have."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "helmr.testing.plugin", "-c", "pyproject.toml"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=ROOT / "examples" / "hello", env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
