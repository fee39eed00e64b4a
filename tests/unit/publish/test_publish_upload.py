"""Uploading, and the example project. SPEC [D1], [D2]."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from helmr.protocol.errors import DatabaseUnavailable, PublishError
from helmr.protocol.manifest import Manifest
from helmr.protocol.shapes import Deployment
from helmr.protocol.wire import from_wire, to_wire
from helmr.publish.project import load_project
from helmr.publish.scaffold import carry, example, init
from helmr.publish.upload import Progress, prepare, publish

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

EXAMPLES = Path(__file__).parents[3] / "examples"


class Store:
    """An Environment's blobs, kept by content."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.puts = 0
        self.manifests: list[tuple[Manifest, bool]] = []
        self.failing = 0

    async def missing_blobs(self, digests: Sequence[str]) -> Sequence[str]:
        return [digest for digest in digests if digest not in self.blobs]

    async def put_blob(self, digest: str, content: bytes | Path) -> None:
        if self.failing:
            self.failing -= 1
            raise DatabaseUnavailable
        data = content if isinstance(content, bytes) else content.read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        self.blobs[digest] = data
        self.puts += 1

    async def create_deployment(self, manifest: Manifest, promote: bool = True, *, pull: bool = False) -> Deployment:
        needed = {manifest.bundle, *manifest.blobs}
        needed |= {entry["blob"] for entry in json.loads(self.blobs[manifest.bundle])["files"].values()}
        assert needed <= self.blobs.keys()
        self.manifests.append((manifest, promote))
        return Deployment(id="d", status="building", current=False, digest="x", created_at="now")  # type: ignore[arg-type]


async def test_publishing_uploads_only_what_is_missing(tmp_path: Path) -> None:
    init(tmp_path / "p")
    store, told = Store(), list[Progress]()
    deployment = await publish(store, load_project(tmp_path / "p"), progress=told.append)
    assert (deployment.status, store.manifests[0][1]) == ("building", True)
    first = store.puts
    assert [one.stage for one in told][:2] == ["discovering", "discovered"] and told[-1].stage == "created"
    assert (told[-2].done, told[-2].total) == (first, first)

    await publish(store, load_project(tmp_path / "p"), promote=False)
    assert store.puts == first
    assert store.manifests[1] == (store.manifests[0][0], False)

    (tmp_path / "p/repo/README.md").write_text("other", encoding="utf-8")
    await publish(store, load_project(tmp_path / "p"))
    # One file, the bundle's listing, and the listing of the folder that the image copies.
    assert store.puts == first + 3
    assert store.manifests[2][0].bundle != store.manifests[0][0].bundle


async def test_a_failed_upload_is_told_as_it_is_and_can_be_tried_again(tmp_path: Path) -> None:
    init(tmp_path / "p")
    store = Store()
    store.failing = 1
    with pytest.raises(DatabaseUnavailable):
        await publish(store, load_project(tmp_path / "p"))
    assert store.manifests == []
    await publish(store, load_project(tmp_path / "p"))
    assert len(store.manifests) == 1


async def test_a_manifest_survives_the_wire() -> None:
    for name in ("hello", "reviewer", "release"):
        manifest = (await prepare(load_project(EXAMPLES / name))).manifest
        assert from_wire(Manifest, json.loads(json.dumps(to_wire(manifest)))) == manifest


async def test_the_examples_define_what_their_readmes_say() -> None:
    hello = (await prepare(load_project(EXAMPLES / "hello"))).manifest
    assert [(one.id, one.input_kind) for one in hello.agents] == [("echo", "text")]
    release = (await prepare(load_project(EXAMPLES / "release"))).manifest
    assert [(one.id, one.input_kind) for one in release.agents] == [("release", "text")]
    nightly = (await prepare(load_project(EXAMPLES / "nightly"))).manifest
    assert [(one.id, one.timezone) for one in nightly.agents[0].triggers] == [("nightly", "Europe/Berlin"), ("each-minute", "UTC")]
    reviewer = (await prepare(load_project(EXAMPLES / "reviewer"))).manifest
    [one], [box] = reviewer.agents, reviewer.templates
    assert (one.id, one.input_kind, one.has_init, one.file) == ("reviewer", "text", True, "agents/reviewer.py")
    assert one.result_schema is not None and "verdict" in one.result_schema["required"]
    assert (box.image.base, [step.kind for step in box.image.steps]) == ("host", ["pip_install", "copy"])


async def test_init_writes_a_project_that_publishes_and_overwrites_nothing(tmp_path: Path) -> None:
    written = init(tmp_path / "new")
    assert {"pyproject.toml", "README.md", ".gitignore", "agents/reviewer.py", "review/git.py", "repo/README.md"} <= set(written)
    assert [one.id for one in (await prepare(load_project(tmp_path / "new"))).manifest.agents] == ["reviewer"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/pyproject.toml").write_text("mine", encoding="utf-8")
    with pytest.raises(PublishError, match="already there"):
        init(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["pyproject.toml"]
    assert (tmp_path / "other/pyproject.toml").read_text(encoding="utf-8") == "mine"


async def test_init_can_carry_a_repositorys_history_into_the_image_but_not_the_bundle(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    commit = ("-c", "user.name=x", "-c", "user.email=x@example.invalid", "commit", "-q", "--allow-empty", "-m", "one")
    for arguments in (("init", "-q", str(origin)), ("-C", str(origin), *commit)):
        subprocess.run(["git", *arguments], check=True, timeout=30)
    assert "repo/repo.bundle" in init(tmp_path / "p", repository=origin)
    made = await prepare(load_project(tmp_path / "p"))
    source = made.blobs[made.manifest.bundle]
    assert isinstance(source, bytes) and "repo/repo.bundle" not in json.loads(source)["files"]
    copied = made.blobs[made.manifest.templates[0].image.steps[1].blob]
    assert isinstance(copied, bytes) and set(json.loads(copied)["files"]) == {"README.md", "repo.bundle"}
    subprocess.run(["git", "clone", "-q", str(tmp_path / "p/repo/repo.bundle"), str(tmp_path / "clone")], check=True, timeout=30)
    with pytest.raises(PublishError, match="git can't bundle"):
        carry(tmp_path / "p", tmp_path / "nothing")


def test_the_example_is_found_and_whole() -> None:
    assert (example() / "agents/reviewer.py").is_file()
