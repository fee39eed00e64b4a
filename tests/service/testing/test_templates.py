"""What `helmr init` writes runs: discovered, published, one Turn of each Agent. SPEC [D1]."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from helmr import text
from helmr.cli.project import init as command
from helmr.protocol.errors import PublishError
from helmr.publish.project import load_project
from helmr.publish.scaffold import TEMPLATES, init
from helmr.publish.upload import prepare
from helmr.testing import RuntimeFactory

pytestmark = pytest.mark.anyio

HELLO = [text("write it, test it")]
RUNS: dict[str, dict[str, tuple[Any, Any]]] = {
    "text": {"assistant": (HELLO, {"words": 4})},
    "schema": {"triage": ({"title": "A crash"}, {"priority": "high", "reason": "It crashes."})},
    "question": {"deployer": (HELLO, {"where": "staging", "why": "It is Tuesday"})},
    "scheduled": {"reporter": (HELLO, None)},
    "team": {"lead": (HELLO, {"steps": ["write it", "test it"]}), "reviewer": (HELLO, {"fine": True})},
}
"""For each template, each Agent's input and result; None where that is of the moment."""


@pytest.fixture
def imports() -> Iterator[None]:
    """The runtime imports agent files into this process; those of one project must not be found by the next."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if (name not in known and name.partition(".")[0] == "agents") or name.startswith("_helmr_")]:
        del sys.modules[name]


@pytest.mark.parametrize("template", RUNS)
async def test_a_template_is_discovered_published_and_answers(
    template: str, tmp_path: Path, imports: None, helmr_runtime: RuntimeFactory
) -> None:
    assert {"pyproject.toml", "README.md", ".gitignore", ".helmrignore"} <= set(init(tmp_path / "p", template=template))
    made = (await prepare(load_project(tmp_path / "p"))).manifest
    assert {agent.id for agent in made.agents} == set(RUNS[template])
    assert all(agent.triggers for agent in made.agents) == (template == "scheduled")
    async with helmr_runtime(tmp_path / "p") as runtime:
        if template == "question":
            runtime.person.chooses("deployer", "staging")
            runtime.person.answers("deployer", "It is Tuesday")
        for agent, (given, result) in RUNS[template].items():
            created = await runtime.client.sessions.create(agent=agent, input=given)
            assert created.turn is not None
            outcome = await created.turn.wait()
            assert outcome.status == "completed" and result in (None, outcome.result)


def test_the_command_offers_every_template_and_writes_the_chosen_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    option = next(one for one in command.params if one.name == "template")
    assert isinstance(option.type, click.Choice) and set(option.type.choices) == set(TEMPLATES) == {*RUNS, "reviewer"}
    command.main([str(tmp_path / "p"), "--template", "team", "--json"], standalone_mode=False)
    said = json.loads(capsys.readouterr().out)
    assert said["template"] == "team" and "agents/lead.py" in said["files"]
    assert all((tmp_path / "p" / file).is_file() for file in said["files"])
    with pytest.raises(PublishError, match="already there"):
        init(tmp_path / "p", template="text")
    shutil.rmtree(tmp_path / "p")
    with pytest.raises(PublishError, match="carries no repository"):
        init(tmp_path / "p", template="text", repository=tmp_path)
    assert not (tmp_path / "p").exists()
