"""Images through the whole system: a Node base without Python, from a registry, by a mapped name. SPEC [A7], [A9], [D2]."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import programs
from tests.debian import ImageFolder, node_layer
from tests.registries import Registry, need_registry
from tests.scenarios.installed import installed

from helmr import text
from helmr.testing.installation import Installation

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="layers of a base need root"),
]

NAME = "node:24-bookworm-slim"
AGENT = """
import asyncio, json, os, shutil, sys
from helmr import AgentContext, Turn, agent, image, source, template

tools = image("tools").from_host().run(["sh", "-c", "mkdir -p /opt/made; echo made > /opt/made/file; chown 1000:7 /opt/made/file"])
node = (
    image("node").from_("node:24-bookworm-slim")
    .env(COLOUR="blue")
    .copy("lib/", source.directory("lib"))
    .copy_from(tools, "/opt/made", "/opt/made")
    .run(["node", "-e", "require('fs').writeFileSync('built', process.version + ' ' + process.env.FROM_BASE)"])
    .workdir("/srv/app/lib")
    .user("1000:7")
)

PROGRAM = '''
const fs = require("fs");
console.log(JSON.stringify({
  version: process.version, cwd: process.cwd(), ids: [process.getuid(), process.getgid()], copied: fs.readFileSync("words.txt", "utf8"),
  built: fs.readFileSync("/srv/app/built", "utf8"),
  made: fs.readFileSync("/opt/made/file", "utf8"), owner: fs.statSync("/opt/made/file").uid,
  colour: process.env.COLOUR, base: process.env.FROM_BASE, home: process.env.HOME,
}));
'''

@agent(id="noder", template=template(id="node", image=node, resources={"memory": "512MiB"}))
async def noder(turn: Turn, ctx: AgentContext) -> dict:
    program = await asyncio.create_subprocess_exec("node", "-e", PROGRAM, stdout=asyncio.subprocess.PIPE)
    said, _ = await program.communicate()
    return {**json.loads(said), "pythons": [shutil.which(name) for name in ("python3", "python")], "python": sys.executable,
            "python_version": list(sys.version_info[:3])}
"""


@dataclass
class Stage:
    """A project of one Agent on the Node base, the registry that has it, and an installation that it is published to."""

    registry: Registry
    layout: ImageFolder
    project: Path
    installation: Installation
    pushed: str
    said: list[str] = field(default_factory=list)

    def helmr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.installation.environment()}
        return programs.run([sys.executable, "-m", "helmr.cli", *arguments], env=environment, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="helmr-images-", dir="/var/tmp") as made:
        yield Path(made)


@pytest.fixture(scope="module")
async def stage(folder: Path, anyio_backend: str) -> AsyncIterator[Stage]:
    need_registry()
    layout = ImageFolder(folder / "layout")
    layout.add("24", await asyncio.to_thread(node_layer), Env=["PATH=/usr/bin:/bin", "FROM_BASE=yes"], WorkingDir="/srv/app", User="0")
    project = folder / "project"
    (project / "agents").mkdir(parents=True)
    (project / "lib").mkdir()
    (project / "lib/words.txt").write_text("words")
    (project / "agents/noder.py").write_text(AGENT)
    async with Registry(folder).serving() as registry:
        pushed = registry.push(layout.root, "24", "library/node:24")
        (project / "pyproject.toml").write_text(
            f'[project]\nname = "noder"\nversion = "1"\n[tool.helmr]\ndeps = false\n'
            f'[tool.helmr.images]\n"{NAME}" = "{registry.address}/library/node:24"\n'
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(registry.home))  # where skopeo looks for its settings
            async with installed(project) as installation:
                yield Stage(registry, layout, project, installation, pushed)


async def test_an_agent_runs_in_an_image_without_python(stage: Stage) -> None:
    """[A7], [A9]: the worker's CPython runs it; base, steps, environment, directory and user are those of the recipe."""
    async with stage.installation.client() as client:
        made = await client.sessions.create(agent="noder", input=[text("go")])
        waited = await made.turn.wait(timeout="500s")
        assert waited.status == "settled", waited
        assert waited.outcome.status == "completed", waited.outcome
        told = waited.outcome.result
        assert told["pythons"] == [None, None], "there is no Python of its own"
        assert told["python"].startswith("/opt/helmr/python/")
        assert tuple(told["python_version"]) == sys.version_info[:3]
        assert told["version"].startswith("v")
        assert (told["cwd"], told["ids"], told["copied"]) == ("/srv/app/lib", [1000, 7], "words")
        assert told["built"] == f"{told['version']} yes"
        assert (told["made"], told["owner"]) == ("made\n", 1000)
        assert (told["colour"], told["base"]) == ("blue", "yes")
        deployment = await client.deployments.current()
        assert deployment.images == {f"{stage.registry.address}/library/node:24": stage.pushed}, "the registry's own digest is recorded"


async def test_deploy_streams_what_the_build_says_and_pull_takes_what_the_tag_names_now(stage: Stage) -> None:
    """[A7], [D2]: without --pull the digest stays though the registry moved; a rebuild of what is there says nothing of steps."""
    first = await asyncio.to_thread(stage.helmr, "deployment", "get", "--json")
    again = await asyncio.to_thread(stage.helmr, "deploy", str(stage.project), "--json")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout, "same content and digests: same Deployment"
    assert "run [" in again.stderr, "its log is the one of its build"

    stage.layout.add("25", _layer(stage.layout), Env=["FROM_BASE=moved", "PATH=/usr/bin"])
    moved = stage.registry.push(stage.layout.root, "25", "library/node:24")
    assert moved != stage.pushed
    (stage.project / "lib/words.txt").write_text("other")
    kept = await asyncio.to_thread(stage.helmr, "deploy", str(stage.project), "--json")
    assert kept.returncode == 0, kept.stderr
    assert stage.pushed in kept.stdout
    assert "unpack layer" not in kept.stderr, "the base is there"
    pulled = await asyncio.to_thread(stage.helmr, "deploy", str(stage.project), "--pull", "--json")
    assert pulled.returncode == 0, pulled.stderr
    assert moved in pulled.stdout
    assert stage.pushed not in pulled.stdout
    assert "unpack layer" not in pulled.stderr, "its layer is the same, only its configuration is not"


async def test_a_step_that_fails_fails_the_deployment_with_command_code_and_last_lines(stage: Stage) -> None:
    """[A7], [D2]: and the Deployment before stays current."""
    before = await asyncio.to_thread(stage.helmr, "deployment", "get", "--json")
    agents = stage.project / "agents/noder.py"
    agents.write_text(AGENT.replace("process.version + ' ' + process.env.FROM_BASE", "missing.word"))
    failed = await asyncio.to_thread(stage.helmr, "deploy", str(stage.project))
    agents.write_text(AGENT)
    assert failed.returncode != 0
    for word in ('Step 4 of image "node"', "exited with 1", "ReferenceError: missing is not defined"):
        assert word in failed.stderr
    assert (await asyncio.to_thread(stage.helmr, "deployment", "get", "--json")).stdout == before.stdout


async def test_a_file_that_imports_here_and_not_in_its_image_fails_the_deployment_with_file_and_line(stage: Stage) -> None:
    """[D2]: what is installed beside helmr is not in the image unless the project says that it depends on it."""
    before = await asyncio.to_thread(stage.helmr, "deployment", "get", "--json")
    agents = stage.project / "agents/noder.py"
    agents.write_text("import aiohttp\n" + AGENT)
    failed = await asyncio.to_thread(stage.helmr, "deploy", str(stage.project))
    agents.write_text(AGENT)
    assert failed.returncode == 1
    assert "agents/noder.py:1: ModuleNotFoundError: No module named 'aiohttp'" in failed.stderr and "import_failed" in failed.stderr
    assert (await asyncio.to_thread(stage.helmr, "deployment", "get", "--json")).stdout == before.stdout


def _layer(layout: ImageFolder) -> Path:
    """The largest blob: the layer of the base."""
    return max(layout.root.glob("blobs/sha256/*"), key=lambda path: path.stat().st_size)
