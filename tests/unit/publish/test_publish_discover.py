"""Discovery and what it says of broken projects. SPEC [D1], [D2], [M1], [T1]."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from helmr.protocol.errors import DefinitionInvalid, ImportFailed, PublishError
from helmr.publish.discover import agent_files, discover
from helmr.publish.project import load_project
from helmr.publish.upload import prepare

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

HEAD = """
from helmr import AgentContext, InitContext, Turn, agent, cron, image, template, text

box = template(id="box", image=image("box").from_host())


async def handle(turn: Turn, ctx: AgentContext) -> None: ...
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(files: dict[str, str], settings: str = "") -> Path:
        for name, text in {"pyproject.toml": f'[project]\nname = "p"\n[tool.helmr]\n{settings}\n', **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text), encoding="utf-8")
        (tmp_path / "agents").mkdir(exist_ok=True)
        return tmp_path

    return write


def agent_file(*lines: str) -> str:
    return HEAD + "\n\n" + "\n".join(lines) + "\n"


async def test_discovery_finds_what_files_define_with_file_line_and_name(write: Write) -> None:
    root = write(
        {
            "agents/a.py": agent_file('first = agent(id="first", template=box, turn=handle)'),
            "agents/deep/b.py": "from agents.a import first, box\nfrom helmr import agent\n\n@agent(id='second', template=box)\n"
            "async def other(turn, ctx): ...\n",
            "agents/_private.py": "raise RuntimeError('never imported')\n",
            "agents/ignored/c.py": "raise RuntimeError('never imported')\n",
            "agents/notes.txt": "no Python",
            "lib/x.py": "raise RuntimeError('never imported')\n",
        },
        'ignore = ["agents/ignored/"]',
    )
    found = await discover(load_project(root))
    assert [(one.id, one.file, one.attribute, one.template) for one in found.agents] == [
        ("first", "agents/a.py", "first", "box"),
        ("second", "agents/deep/b.py", "other", "box"),
    ]
    assert found.agents[0].line == len(HEAD.splitlines()) + 3
    assert found.agents[1].line == 4
    assert [one.template.id for one in found.templates] == ["box"]


async def test_a_manifest_is_the_same_for_the_same_project(write: Write) -> None:
    root = write({"agents/a.py": agent_file('a = agent(id="a", template=box, turn=handle)')})
    one, other = await prepare(load_project(root)), await prepare(load_project(root))
    assert one.manifest == other.manifest
    assert set(one.blobs) == set(other.blobs)
    assert not (root / "agents/__pycache__").exists()


async def test_every_failing_file_is_told_with_its_line_cause_and_remedy(write: Write) -> None:
    root = write(
        {
            "agents/a_syntax.py": "x = 1\ndef broken(:\n",
            "agents/b_missing.py": "\nimport not_a_module_anywhere\n",
            "agents/c_raises.py": "from lib.deep import value\n",
            "agents/d_exits.py": "import sys\nsys.exit('bye')\n",
            "agents/e_fine.py": agent_file('a = agent(id="a", template=box, turn=handle)'),
            "agents/f_rule.py": agent_file('b = agent(id="", template=box, turn=handle)'),
            "lib/deep.py": "\n\nvalue = 1 / 0\n",
        }
    )
    with pytest.raises(ImportFailed) as caught:
        await discover(load_project(root))
    told = {(problem["file"], problem["line"]): problem for problem in caught.value.facts["problems"]}
    assert set(told) == {
        ("agents/a_syntax.py", 2),
        ("agents/b_missing.py", 2),
        ("lib/deep.py", 3),
        ("agents/d_exits.py", 2),
        ("agents/f_rule.py", len(HEAD.splitlines()) + 3),
    }
    assert "SyntaxError" in told["agents/a_syntax.py", 2]["cause"]
    assert "add it to the project's dependencies" in told["agents/b_missing.py", 2]["remedy"]
    assert told["lib/deep.py", 3]["cause"] == "ZeroDivisionError: division by zero."
    assert "__main__" in told["agents/d_exits.py", 2]["remedy"]
    assert "agents/b_missing.py:2: ModuleNotFoundError" in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['a = agent(id=" ", template=box, turn=handle)'], "needs an id"),
        (['a = agent(id="a b", template=box, turn=handle)'], "malformed"),
        (['a = agent(id="a", template="box", turn=handle)'], "needs template"),
        (['a = agent(id="a", template=box, turn=handle, runtime_mcp={})'], "needs the member allow"),
        (['a = agent(id="a", template=box, turn=handle, close_after_idle="1 week")'], "close_after_idle"),
        (['cron("t", "61 * * * *", timezone="UTC")'], "minute"),
        (['cron("t", "0 9 * * *", timezone="Mars/Olympus")'], "Mars/Olympus"),
        (['a = agent(id="a", template=box, turn=lambda turn: None)'], "must take (turn, ctx)"),
        (['a = agent(id="a", template=box, turn=handle, init=lambda: 1)'], "must take (ctx)"),
        (["async def talk(turn, ctx):", "    yield 1", 'a = agent(id="a", template=box, turn=talk)'], "generator"),
        (['a = agent(id="a", template=box, turn=handle, triggers=[cron("t", "0 9 * * *", timezone="UTC", input="go")])'], "text input"),
        (['a = agent(id="a", template=box, turn=handle, triggers=[cron("t", "0 9 * * *", timezone="UTC")])'], "no input"),
        (
            ["class Odd: ...", 'a = agent(id="a", template=box, turn=handle, input_schema=Odd)'],
            "input_schema of the agent 'a' can't be used",
        ),
    ],
)
async def test_a_definition_that_breaks_a_rule_is_told_where_it_stands(write: Write, lines: list[str], said: str) -> None:
    root = write({"agents/a.py": agent_file(*lines)})
    with pytest.raises(DefinitionInvalid) as caught:
        await discover(load_project(root))
    [problem] = caught.value.facts["problems"]
    assert said in problem["cause"]
    assert (problem["file"], problem["line"]) == ("agents/a.py", len(HEAD.splitlines()) + 2 + len(lines))


async def test_what_only_the_whole_project_shows_is_told_together(write: Write) -> None:
    root = write(
        {
            "agents/a.py": agent_file('a = agent(id="same", template=box, turn=handle)'),
            "agents/b.py": agent_file(
                'a = agent(id="same", template=box, turn=handle)',
                'policy = {"allow": [{"operation": "spawn", "agents": ["ghost", "same"]}]}',
                'b = agent(id="b", template=box, turn=handle, runtime_mcp=policy)',
                'box2 = template(id="box", image=image("box").from_host(), resources={"cpu": 2})',
                'box3 = template(id="box3", image=image("box").from_host().copy("/srv", __import__("helmr").source.directory("nowhere")))',
            ),
        }
    )
    with pytest.raises(DefinitionInvalid) as caught:
        await prepare(load_project(root))
    causes = [problem["cause"] for problem in caught.value.facts["problems"]]
    assert len(causes) == 4
    assert any("'same' is already defined in agents/a.py:" in cause for cause in causes)
    assert any("names the Agent 'ghost'" in cause for cause in causes)
    assert any("template id 'box' is already" in cause for cause in causes)
    assert any("'nowhere'" in cause for cause in causes)


async def test_policies_are_resolved_to_the_agents_of_the_publication(write: Write) -> None:
    """[M1]: an inherited policy is everything on exactly these Agents, with new Computers."""
    root = write(
        {
            "agents/a.py": agent_file(
                'a = agent(id="a", template=box, turn=handle)',
                'b = agent(id="b", template=box, turn=handle, runtime_mcp={"allow": []})',
            )
        }
    )
    a, b = (await prepare(load_project(root))).manifest.agents
    assert b.runtime_mcp == {"allow": []}
    assert a.runtime_mcp is not None
    assert {"operation": "spawn", "agents": ["a", "b"], "computer": "new"} in a.runtime_mcp["allow"]
    assert {"operation": "list_computers"} in a.runtime_mcp["allow"]
    assert len(a.runtime_mcp["allow"]) == 12


async def test_a_schema_is_published_or_the_reason_why_not(write: Write) -> None:
    root = write(
        {
            "agents/a.py": agent_file(
                "from dataclasses import dataclass",
                "@dataclass",
                "class Issue:",
                "    number: int",
                "class Own:",
                "    async def validate(self, value): return value",
                'a = agent(id="a", template=box, turn=handle, input_schema=Issue, result_schema=Issue)',
                'b = agent(id="b", template=box, turn=handle, input_schema=Own())',
                'c = agent(id="c", template=box, turn=handle)',
            )
        }
    )
    a, b, c = (await discover(load_project(root))).agents
    assert (a.input_kind, b.input_kind, c.input_kind) == ("json", "json", "text")
    assert a.input_schema is not None and a.input_schema["required"] == ["number"]
    assert a.result_schema is not None
    assert (b.input_schema, b.input_schema_unavailable) == (None, "Own has no json_schema().")
    assert (c.input_schema, c.input_schema_unavailable) == (None, None)


async def test_images_become_manifests_with_what_they_copy(write: Write) -> None:
    root = write(
        {
            "files/motd": "hello",
            "files/more/x": "x",
            "agents/a.py": agent_file(
                "from helmr import secret, source",
                'other = image("other").from_("debian:12").copy("/data", source.directory("files"))',
                'made = image("made").from_("python:3.12-slim").copy("/etc/motd", source.file("files/motd"))',
                'made = made.copy("/srv/", source.file("files/motd")).copy("/srv/files", source.directory("files"))',
                'made = made.copy_from(other, "/data", "/data").network(["example.com"]).run(["true"])',
                'big = template(id="big", image=made, secrets=[secret("TOKEN")], egress=["example.com"], resources={"pids": 64})',
                'a = agent(id="a", template=big, turn=handle)',
            ),
        },
        '[tool.helmr.images]\n"python:3.12-slim" = "host"\n"debian:12" = "mirror.example/debian:12"',
    )
    made = await prepare(load_project(root))
    big, box = made.manifest.templates
    assert (box.id, big.id, big.pids, big.egress) == ("box", "big", 64, ("example.com",))
    assert (big.image.base, big.image.reference) == ("host", "")
    file, into, folder, other, run = big.image.steps
    assert (file.dest, into.dest, folder.dest) == ("/etc", "/srv", "/srv/files")
    assert other.image is not None and other.image.reference == "mirror.example/debian:12"
    assert other.image.steps[0].blob == folder.blob
    assert (run.argv, run.network) == (("true",), ("example.com",))
    for step in (file, into, folder):
        assert step.blob in made.manifest.blobs and step.blob in made.blobs
    assert set(made.manifest.blobs) <= set(made.blobs)
    assert big.secrets == ({"name": "TOKEN", "env": "TOKEN", "file": "", "mode": "raw", "allowed_origins": [], "headers": []},)


async def test_the_projects_code_runs_in_a_clean_process_of_its_own(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELMR_API_KEY", "sentinel")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    root = write(
        {
            "agents/a.py": agent_file(
                "import os, sys",
                "print('noise on stdout'); print('noise on stderr', file=sys.stderr)",
                "assert 'HELMR_API_KEY' not in os.environ and 'PYTHONPATH' not in os.environ",
                "assert sys.stdin.read() == ''",
                f"assert os.getpid() != {os.getpid()}",
                'a = agent(id="a", template=box, turn=handle)',
            )
        }
    )
    assert [one.id for one in (await discover(load_project(root))).agents] == ["a"]


async def test_a_file_that_ends_the_process_is_named(write: Write) -> None:
    root = write({"agents/a.py": "", "agents/b.py": "import os\nprint('last words', flush=True)\nos._exit(7)\n"})
    with pytest.raises(ImportFailed, match=r"agents/b\.py: The process ended \(code 7\).*last words"):
        await discover(load_project(root))


async def test_an_import_that_never_ends_is_ended(write: Write) -> None:
    root = write({"agents/a.py": "import threading\nthreading.Event().wait()\n"})
    with pytest.raises(PublishError, match="took longer"):
        await discover(load_project(root), seconds=0.5)


async def test_a_cancelled_discovery_leaves_no_process(write: Write, tmp_path: Path) -> None:
    pipe = tmp_path / "told"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDWR)
    told = f"import os, threading\nopen({str(pipe)!r}, 'w').write(f'{{os.getpid()}}\\n')\nthreading.Event().wait()\n"
    root = write({"agents/a.py": told}, 'ignore = ["told"]')
    task = asyncio.ensure_future(discover(load_project(root)))
    pid = int((await asyncio.to_thread(os.read, reading, 64)).decode())
    os.close(reading)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_project_without_agents_says_what_to_do(write: Write) -> None:
    with pytest.raises(PublishError, match="helmr init"):
        await discover(load_project(write({})))
    with pytest.raises(PublishError, match="defines no Agent"):
        await discover(load_project(write({"agents/a.py": "x = 1\n"})))


async def test_threads_that_an_import_started_do_not_keep_discovery_waiting(write: Write, bounded: Callable[[], asyncio.Timeout]) -> None:
    root = write(
        {
            "agents/a.py": agent_file(
                "import threading",
                "threading.Thread(target=threading.Event().wait).start()",
                'a = agent(id="a", template=box, turn=handle)',
            )
        }
    )
    assert len((await discover(load_project(root), seconds=60)).agents) == 1


def test_agent_files_are_listed_in_order(write: Write) -> None:
    root = write(
        {"agents/b.py": "", "agents/a/z.py": "", "agents/a/_x.py": "", "more/c.py": "", "agents/d.txt": ""}, 'dirs = ["more", "agents"]'
    )
    assert agent_files(load_project(root)) == ("agents/a/z.py", "agents/b.py", "more/c.py")
