"""Broken projects of many kinds: what each is told, and that nothing reaches the server. SPEC [D1], [D2]; issue 5, "It must".

Files that break alone lie in one project, which is discovered once: all of them are told together, each with its own place.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helmr.protocol.errors import DefinitionInvalid, ImportFailed, PublishError
from helmr.protocol.limits import BLOB_BYTES
from helmr.protocol.manifest import Manifest
from helmr.protocol.shapes import Deployment
from helmr.publish.child import inspect
from helmr.publish.discover import discover
from helmr.publish.project import load_project
from helmr.publish.upload import publish

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

HEAD = """from helmr import agent, cron, image, secret, source, template
box = template(id="box", image=image("box").from_host())
async def handle(turn, ctx): ...
"""
FINE = HEAD + 'fine = agent(id="fine", template=box, turn=handle)\n'
PYPROJECT = '[project]\nname = "p"\n'


@dataclass(frozen=True)
class Broken:
    """One file. The line to be told is marked in the text; `said` is in the cause and `remedy` in the remedy, or in the cause too."""

    name: str
    text: str
    said: str
    remedy: str
    kind: str = "definition"

    @property
    def line(self) -> int:
        return next(number for number, line in enumerate(self.text.splitlines(), 1) if "# here" in line)


def defined(name: str, line: str, said: str, remedy: str) -> Broken:
    return Broken(name, f"{HEAD}\n{line}  # here\n", said, remedy)


def imported(name: str, text: str, said: str, remedy: str) -> Broken:
    return Broken(name, text, said, remedy, "import")


RULES = str([{"operation": "list_computers"}] * 257)
BAD = "a = agent(id='{0}', template=box, turn=handle, {1})"
FILES = (
    imported("syntax", "x = 1\ndef broken(:  # here\n", "SyntaxError", "Mend"),
    imported("missing", "import not_a_module_anywhere  # here\n", "ModuleNotFoundError", "add it to the project's dependencies"),
    imported(
        "no_such_name",
        "from helmr import nonsense  # here\n",
        "ImportError: cannot import name 'nonsense'",
        "python -m agents.no_such_name",
    ),
    imported("raises", "\nx = {}['key']  # here\n", "KeyError: 'key'.", "python -m agents.raises"),
    imported("exits", "import sys\nsys.exit('bye')  # here\n", "SystemExit: bye.", "__main__"),
    imported("circular", "from agents.circular_other import y  # here\nx = 1\n", "circular import", "a third one"),
    imported("endless", "def again(): again()  # here\nagain()\n", "RecursionError", "calls itself"),
    imported("interrupts", "raise KeyboardInterrupt  # here\n", "KeyboardInterrupt.", "traceback"),
    defined("blank_id", BAD.format(" ", ""), "needs an id", "needs an id"),
    defined("bad_id", BAD.format("a b", ""), "malformed", "letters, digits, dots"),
    defined("long_id", BAD.format("a" * 129, ""), "malformed", "at most 128"),
    defined(
        "wildcard", BAD.format("w", "runtime_mcp={'allow': [{'operation': '*'}]}"), "operation '*' is unknown", "operations and Agents"
    ),
    defined(
        "wildcard_agent",
        BAD.format("wa", "runtime_mcp={'allow': [{'operation': 'spawn', 'agents': ['*']}]}"),
        "'*', which is no Agent key",
        "operations and Agents",
    ),
    defined("rules", BAD.format("r", f"runtime_mcp={{'allow': {RULES}}}"), "allow has 257 rules; at most 256", "operations and Agents"),
    defined(
        "bad_cron", "cron('t', '61 * * * *', timezone='UTC', input='x')", "The minute field '61' is outside 0 to 59", "minute, hour, day"
    ),
    defined("four_fields", "cron('t', '* * * *', timezone='UTC', input='x')", "has 4 fields", "minute hour day"),
    defined("never_fires", "cron('t', '0 0 30 2 *', timezone='UTC', input='x')", "never fires", "minute, hour, day"),
    defined("zone", "cron('t', '0 9 * * *', timezone='Mars/Olympus', input='x')", "'Mars/Olympus' is no IANA time zone", "IANA name"),
    defined("period", BAD.format("p", "close_after_idle='1 week'"), "close_after_idle", '"7d"'),
    defined("reserved", "secret('T', env='HELMR_API_KEY')", "The variable HELMR_API_KEY is reserved", "the runtime sets itself"),
    defined(
        "egress", "template(id='e', image=box.image, egress=['https://example.com/x'])", "https://example.com/x", 'egress=["example.com"'
    ),
    defined("resource", "template(id='m', image=box.image, resources={'gpu': 1})", "unknown resource 'gpu'", "known are cpu, memory, pids"),
    defined("memory", "template(id='m', image=box.image, resources={'memory': '1 GB'})", "memory '1 GB'", '"512MiB"'),
    defined("image", "image('x').from_('no image at all')", "'no image at all' is no image reference", '"python:3.12-slim"'),
    defined("no_base", "template(id='nb', image=image('x'))", "has no base", "call from_host()"),
    defined("leaves", "source.file('../secret')", "leaves the project", "copy what you need into it"),
    defined("handler", BAD.format("h", "").replace("turn=handle", "turn=lambda turn: 1"), "must take (turn, ctx)", "must take"),
    defined(
        "no_input",
        BAD.format("ni", "triggers=[cron('t', '0 9 * * *', timezone='UTC')]"),
        "has no input, so a firing",
        'input=[text("...")]',
    ),
)


class Untouched:
    """A server that must not hear of a broken project."""

    async def missing_blobs(self, digests: Sequence[str]) -> Sequence[str]:
        raise AssertionError("asked for blobs")

    async def put_blob(self, digest: str, content: bytes | Path) -> None:
        raise AssertionError("put a blob")

    async def create_deployment(self, manifest: Manifest, promote: bool = True, *, pull: bool = False) -> Deployment:
        raise AssertionError("created a Deployment")


def write(root: Path, files: Mapping[str, str], pyproject: str = PYPROJECT) -> Path:
    for name, text in {"pyproject.toml": pyproject, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "agents").mkdir(exist_ok=True)
    return root


async def refusal(root: Path) -> PublishError:
    with pytest.raises(PublishError) as caught:
        await publish(Untouched(), load_project(root))
    return caught.value


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """What is told of each file of `FILES`."""
    files = {f"agents/{broken.name}.py": broken.text for broken in FILES}
    files["agents/circular_other.py"] = "from agents.circular import x\ny = x\n"
    root = write(tmp_path_factory.mktemp("broken"), files)
    error = asyncio.run(refusal(root))
    assert isinstance(error, ImportFailed)
    found = {problem["file"]: problem for problem in error.facts["problems"]}
    assert all(f"{file}:{problem['line']}: " in str(error) for file, problem in found.items())
    return found


@pytest.mark.parametrize("broken", FILES, ids=lambda broken: broken.name)
def test_a_broken_file_is_told_with_its_line_its_rule_and_a_remedy(told: Mapping[str, Mapping[str, Any]], broken: Broken) -> None:
    problem = told["agents/circular_other.py" if broken.name == "circular" else f"agents/{broken.name}.py"]
    assert problem["kind"] == broken.kind
    assert problem["line"] == (1 if broken.name == "circular" else broken.line)
    assert broken.said in problem["cause"]
    assert problem["remedy"] or broken.kind == "definition"
    assert broken.remedy in problem["remedy"] or broken.remedy in problem["cause"]


async def test_what_only_the_whole_project_shows_is_told_at_the_line_of_each_definition(tmp_path: Path) -> None:
    ghost = "{'allow': [{'operation': 'spawn', 'agents': ['ghost']}]}"
    text = (
        "from helmr import agent, image, source, template\nfrom agents.a import box, handle\n"
        "b = agent(id='fine', template=box, turn=handle)\n"
        f"c = agent(id='c', template=box, turn=handle, runtime_mcp={ghost})\n"
        "d = template(id='box', image=image('box').from_host(), resources={'cpu': 2})\n"
        "e = template(id='e', image=image('box').from_host().copy('/srv', source.directory('nowhere')))\n"
        "f = template(id='f', image=image('box').from_host().copy('/srv', source.file('.env')))\n"
    )
    error = await refusal(write(tmp_path, {"agents/a.py": FINE, "agents/b.py": text, ".env": "x"}))
    assert isinstance(error, DefinitionInvalid)
    found = {problem["line"]: (problem["file"], problem["cause"], problem["remedy"]) for problem in error.facts["problems"]}
    assert {file for file, _, _ in found.values()} == {"agents/b.py"}
    assert all(remedy for _, _, remedy in found.values())
    for line, said in {
        3: "'fine' is already defined in agents/a.py:4",
        4: "names the Agent 'ghost'",
        5: "already another template in agents/a.py:2",
        6: "'nowhere'",
        7: "never leaves a project",
    }.items():
        assert said in found[line][1]


@pytest.mark.parametrize(
    ("pyproject", "said"),
    [
        ('[project]\nname = "p"\n[tool.helmr]\ndir = ["agents"]\n', "pyproject.toml:4: [tool.helmr] has the unknown key 'dir'"),
        ("[project]\nname = \n", "pyproject.toml:2: It is malformed: Invalid value."),
        ('[project]\nname = "p', "pyproject.toml:2: It is malformed: Unterminated string."),
        ("[project]\n\n[tool.helmr]\ndirs = ['nowhere']\n", "pyproject.toml:4: The project has no folder 'nowhere'"),
        ("[tool.helmr]\ndirs = ['../elsewhere']\n", "pyproject.toml:2: The folder '../elsewhere' of dirs leaves the project."),
        ("[tool]\nhelmr.deps = 'no'\n", "pyproject.toml:2: [tool.helmr] deps must be true or false."),
        ("[project]\ndependencies = [1]\n", "pyproject.toml:2: dependencies must be a list of texts."),
        ("[tool.helmr.images]\n'a:b' = 1\n", "pyproject.toml:2: [tool.helmr.images] 'a:b' must map"),
        ("tool = 3\n", "pyproject.toml:1: tool must be a table."),
    ],
)
async def test_a_project_file_that_is_wrong_is_told_with_its_line(tmp_path: Path, pyproject: str, said: str) -> None:
    error = await refusal(write(tmp_path, {}, pyproject))
    assert error.detail.startswith(said)
    assert error.facts["problems"][0]["remedy"]


async def test_source_that_can_not_be_bundled_is_named_with_a_remedy(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents/a.py": FINE})
    (root / "out").symlink_to("/etc/hostname")
    error = await refusal(root)
    assert "The symbolic link out leads to '/etc/hostname'" in error.detail and ".helmrignore" in error.advice
    (root / "out").unlink()
    with open(root / "huge.bin", "wb") as file:
        file.truncate(BLOB_BYTES + 1)
    error = await refusal(root)
    assert "huge.bin has" in error.detail and ".helmrignore" in error.advice


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"rich\nxy\xff\xfe\n", "requirements.txt:2: This is no UTF-8."),
        (b"rich\n-e .\n", "requirements.txt:2: '-e .' is no requirement"),
        (b"-r gone.txt\n", "requirements.txt:1: 'gone.txt' can't be read."),
    ],
)
async def test_requirements_that_can_not_be_read_are_told_with_their_line(tmp_path: Path, content: bytes, said: str) -> None:
    (write(tmp_path, {"agents/a.py": FINE}) / "requirements.txt").write_bytes(content)
    error = await refusal(tmp_path)
    assert said in error.detail and error.advice


async def test_a_lock_that_takes_too_long_to_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (write(tmp_path, {"agents/a.py": FINE}) / "uv.lock").write_text("", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/uv").write_text("#!/bin/sh\nread line < /dev/zero\n", encoding="utf-8")
    (tmp_path / "bin/uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr("helmr.publish.dependencies._EXPORT_SECONDS", 0.05)
    error = await refusal(tmp_path)
    assert "uv took longer than" in error.detail and "uv export" in error.advice


async def test_an_import_that_never_ends_is_told_where_it_stands(tmp_path: Path) -> None:
    text = "import threading\n\ndef wait():\n    threading.Event().wait()\n\nwait()\n"
    root = write(tmp_path, {"agents/a.py": FINE, "agents/b.py": text})
    with pytest.raises(ImportFailed) as caught:
        await discover(load_project(root), seconds=0.5)
    [problem] = caught.value.facts["problems"]
    assert (problem["file"], problem["line"]) == ("agents/b.py", 4)
    assert "took longer than 0.5 seconds" in problem["cause"] and "into init or turn" in problem["remedy"]


async def test_forks_of_an_import_neither_keep_discovery_waiting_nor_outlive_it(tmp_path: Path) -> None:
    """One that waits holds the child's output open; one that comes back from the import would tell all a second time."""
    text = (
        "import os, threading\n"
        "pid = os.fork()\n"
        "if pid == 0: threading.Event().wait()\n"
        "open('forked', 'w').write(str(pid))\n"
        "if os.fork() == 0: print('a second one')\n"
    )
    root = write(tmp_path, {"agents/a.py": text, "agents/b.py": FINE})
    assert [agent.id for agent in (await discover(load_project(root))).agents] == ["fine"]
    waiting = int((root / "forked").read_text(encoding="utf-8"))
    await gone(waiting)


async def test_a_process_that_left_with_the_output_is_not_waited_for(tmp_path: Path) -> None:
    text = "import os, threading\nif os.fork() == 0:\n    os.setsid()\n    open('left', 'w').write(str(os.getpid()))\n"
    text += "    os.rename('left', 'away')\n    threading.Event().wait()\n"
    text += "while not os.path.exists('away'): pass\n"
    root = write(tmp_path, {"agents/a.py": text + FINE})
    try:
        assert [agent.id for agent in (await discover(load_project(root))).agents] == ["fine"]
    finally:
        os.kill(int((root / "away").read_text(encoding="utf-8")), 9)


async def test_of_what_an_import_prints_the_end_alone_is_kept(tmp_path: Path) -> None:
    text = "import os, sys\nfor _ in range(160): sys.stdout.write('x' * 65536)\nprint(' \\033[2Jlast words', flush=True)\nos._exit(3)\n"
    root = write(tmp_path, {"agents/a.py": text})
    said = await inspect(root, ("agents/a.py",), 60)
    assert (said.code, said.importing, said.report, said.timed_out) == (3, "agents/a.py", None, False)
    assert said.printed.endswith(" [2Jlast words") and len(said.printed) <= 2000
    error = await refusal(root)
    assert "agents/a.py: The process ended (code 3)" in error.detail and error.facts["problems"][0]["remedy"]


async def gone(pid: int) -> None:
    """Until the process is no more; it was killed, and its parent is not ours."""
    async with asyncio.timeout(5):
        while Path(f"/proc/{pid}/status").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8"):
            await asyncio.sleep(0)
