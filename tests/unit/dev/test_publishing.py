"""Publishing on change [D2], [D4]: a broken version is said with its place and changes nothing."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from watchfiles import Change

from helmr.dev.publishing import Publisher, SourceFilter
from helmr.dev.screen import Screen
from helmr.protocol.errors import DeploymentNotFound
from helmr.protocol.ids import DeploymentId
from helmr.protocol.manifest import Manifest
from helmr.protocol.shapes import Deployment

Bounded = Callable[[], AbstractAsyncContextManager[object]]
AGENT = """
from helmr import agent, image, template

computer = template(id="t", image=image("t").from_host())


@agent(id="{id}", template=computer)
async def turn(turn, ctx):
    return None
"""


class Server:
    """Takes what is published; the same manifest is the same Deployment."""

    def __init__(self) -> None:
        self.deployments: dict[str, Deployment] = {}
        self.created: asyncio.Queue[Deployment] = asyncio.Queue()
        self.status = "deployed"

    async def missing_blobs(self, digests: Sequence[str]) -> Sequence[str]:
        return digests

    async def put_blob(self, digest: str, content: bytes | Path) -> None:
        assert content

    async def create_deployment(self, manifest: Manifest, promote: bool = True, *, pull: bool = False) -> Deployment:
        assert promote
        deployment = Deployment(
            id=DeploymentId(f"01900000-0000-7000-8000-{len(self.deployments):012}"),
            status="building" if self.status == "building" else "deployed",
            current=True,
            digest=manifest.bundle,
            created_at="2026-01-01T00:00:00Z",
            agents=tuple(agent.id for agent in manifest.agents),
        )
        deployment = self.deployments.setdefault(manifest.bundle, deployment)
        self.created.put_nowait(deployment)
        return deployment

    async def get(self, id: str) -> Deployment:
        for deployment in self.deployments.values():
            if deployment.id == id:
                return deployment
        raise DeploymentNotFound()

    async def log(self, id: str) -> AsyncIterator[str]:
        yield "step 1\nstep 2\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "agents").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "0"\n')
    (tmp_path / "agents" / "one.py").write_text(AGENT.format(id="one"))
    return tmp_path


@pytest.fixture
async def server() -> Server:
    return Server()


async def test_a_broken_file_is_said_with_its_place_and_the_old_version_stays(project: Path, server: Server) -> None:
    shown = io.StringIO()
    publisher = Publisher(project, server, Screen(out=shown))
    first = await publisher.publish()
    (project / "agents" / "one.py").write_text("import nothing_of_this_name\n")
    second = await publisher.publish()
    assert first is not None
    assert second is None
    said = shown.getvalue()
    assert "agents/one.py:1" in said
    assert "nothing_of_this_name" in said
    assert f"{first.id[-6:]} stays current" in said
    assert len(server.deployments) == 1


async def test_the_same_content_is_said_once(project: Path, server: Server) -> None:
    shown = io.StringIO()
    publisher = Publisher(project, server, Screen(out=shown))
    await publisher.publish()
    await publisher.publish()
    assert shown.getvalue().count("published") == 1


async def test_the_log_of_a_build_is_shown(project: Path, server: Server) -> None:
    server.status = "building"
    shown = io.StringIO()
    await Publisher(project, server, Screen(out=shown)).publish()
    assert "build | step 1\n" in shown.getvalue()


async def test_a_change_after_start_is_published_also_when_it_comes_before_the_first_publication_is_done(
    project: Path, server: Server, bounded: Bounded
) -> None:
    shown = io.StringIO()
    publisher = Publisher(project, server, Screen(out=shown))
    await publisher.start()
    await publisher.publish()
    (project / "agents" / "one.py").write_text(AGENT.format(id="two"))
    keeping = asyncio.create_task(publisher.keep())
    async with bounded():
        assert (await server.created.get()).agents == ("one",)
        assert (await server.created.get()).agents == ("two",)
    keeping.cancel()
    await asyncio.wait([keeping])
    await publisher.stop()
    assert "changed: agents/one.py" in shown.getvalue()


async def test_a_watch_that_ends_is_said(project: Path, server: Server, bounded: Bounded) -> None:
    publisher = Publisher(project / "nowhere", server, Screen(out=io.StringIO()))
    await publisher.start()
    async with bounded():
        with pytest.raises(FileNotFoundError):
            await publisher.keep()
    await publisher.stop()


@pytest.mark.parametrize("path", [".git/index", "agents/.one.py.swp", "agents/__pycache__/one.pyc", ".venv/lib/x.py", "agents/one.py~"])
def test_what_tools_leave_is_no_change(project: Path, path: str) -> None:
    assert not SourceFilter(project)(Change.modified, str(project / path))


@pytest.mark.parametrize("path", ["agents/one.py", "pyproject.toml", ".helmrignore", "prompts/review.md"])
def test_a_source_is_a_change(project: Path, path: str) -> None:
    assert SourceFilter(project)(Change.modified, str(project / path))
