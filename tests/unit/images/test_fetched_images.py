"""Images that skopeo fetches from a real registry: hosts agree by digest, and what is unpacked needs no source any more [A7]."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.debian import ImageFolder
from tests.engine import engine
from tests.registries import Registry, need_registry
from tests.unit.images.scripted_steps import ScriptedRunner, quiet_network

from helmr.host.sandbox.images import Bases, LayerStore
from helmr.protocol.errors import ImageFailed
from helmr.protocol.manifest import ImageManifest, ImageStep

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.geteuid() != 0, reason="owners and whiteouts need root")]


def archive(**files: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


class Host:
    """A layer store of its own, as another machine has."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LayerStore(root, network=quiet_network(), bases=Bases(root / "bases", folders=[]))
        self.log: list[str] = []

    async def ensure(self, reference: str, digest: str = "") -> list[str]:
        image = ImageManifest(name="ref", base="reference", reference=reference, digest=digest)
        return [layer.key for layer in await self.store.ensure(image, self.root, self.log.append, ScriptedRunner())]

    @property
    def fetched(self) -> list[str]:
        return [line for line in self.log if line.startswith("fetch ")]


@pytest.fixture
async def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registry]:
    need_registry()
    folder = tmp_path / "registry"
    folder.mkdir()
    async with Registry(folder).serving() as serving:
        monkeypatch.setenv("HOME", str(serving.home))
        yield serving


async def test_two_hosts_build_on_the_same_bytes_though_the_tag_moves_between(tmp_path: Path, registry: Registry) -> None:
    """[A7]: resolved once, the digest decides on every host; the tag would have given the second one something else."""
    layout = ImageFolder(tmp_path / "layout")
    layout.add("one", archive(a="1"), Env=["A=1"])
    layout.add("two", archive(a="2"), Env=["A=2"])
    first = registry.push(layout.root, "one", "py:3")
    name = f"{registry.address}/py:3"
    one, two = Host(tmp_path / "one"), Host(tmp_path / "two")
    assert await one.store.resolve(name) == first
    keys = await one.ensure(name, first)
    moved = registry.push(layout.root, "two", "py:3")
    assert await two.store.resolve(name) == moved != first
    assert await two.ensure(name, first) == keys
    assert await two.ensure(name, moved) != keys
    image = ImageManifest(name="ref", base="reference", reference=name, digest=first)
    assert (await two.store.config(image)).env == {"A": "1"}


async def test_what_is_unpacked_needs_its_registry_no_more_until_its_layers_are_collected(tmp_path: Path, registry: Registry) -> None:
    """[A7], [C7]: the fetched archive doesn't stay beside the layers made of it."""
    layout = ImageFolder(tmp_path / "layout")
    layout.add("one", archive(a="1"), archive(b="2"))
    digest, name = registry.push(layout.root, "one", "py:3"), f"{registry.address}/py:3"
    host = Host(tmp_path / "one")
    keys = await host.ensure(name, digest)
    assert len(host.fetched) == 1
    assert os.listdir(host.root / "bases") == ["known"]
    assert await host.ensure(name, digest) == keys
    assert len(host.fetched) == 1
    await host.store.free(host.store.set_aside((), idle_seconds=0))
    assert await host.ensure(name, digest) == keys
    assert len(host.fetched) == 2


async def test_a_name_that_the_registry_lacks_fails_in_its_words(tmp_path: Path, registry: Registry) -> None:
    """[A7]."""
    host = Host(tmp_path / "one")
    name = f"{registry.address}/none:1"
    with pytest.raises(ImageFailed, match="none"):
        await host.store.resolve(name)
    with pytest.raises(ImageFailed, match="could not be fetched"):
        await host.ensure(name, "sha256:" + "0" * 64)
    assert os.listdir(host.root / "bases") == []


async def test_a_layout_that_changed_is_not_mistaken_for_what_was_published(tmp_path: Path) -> None:
    """[A7]: a pinned image of a layout is that image or none."""
    layout = ImageFolder(tmp_path / "layout")
    layout.add("one", archive(a="1"))
    bases = Bases(tmp_path / "bases", folders=[tmp_path])
    name = f"oci:{layout.root}:one"
    digest = await bases.resolve(name)
    (layout.root / "blobs/sha256" / digest.removeprefix("sha256:")).unlink()
    layout.add("one", archive(a="2"))
    assert await bases.resolve(name) != digest
    store = LayerStore(tmp_path / "images", network=quiet_network(), bases=bases)
    with pytest.raises(ImageFailed, match="no longer has"):
        await store.ensure(ImageManifest(name="ref", base="reference", reference=name, digest=digest), tmp_path, print, ScriptedRunner())


async def test_an_engines_images_are_the_operators_to_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[A7]: a recipe can't make hostd talk to a Docker engine that its operator didn't name."""
    monkeypatch.delenv("HELMR_IMAGE_ENGINE", raising=False)
    bases = Bases(tmp_path / "bases", folders=[], skopeo="/bin/false")
    with pytest.raises(ImageFailed, match="HELMR_IMAGE_ENGINE"):
        await bases.resolve("docker-daemon:python:3")
    store = LayerStore(tmp_path / "images", network=quiet_network(), bases=bases)
    with pytest.raises(ImageFailed, match="HELMR_IMAGE_ENGINE"):
        await store.ensure(ImageManifest(name="r", base="reference", reference="docker-daemon:python:3"), tmp_path, print, ScriptedRunner())


async def test_an_image_of_a_docker_engine_is_pinned_by_its_id(tmp_path: Path) -> None:
    """[A7]: the id is resolved, fetched and remembered like a registry's digest; a tag that moves in the engine changes nothing."""
    need_registry()
    layout = ImageFolder(tmp_path / "layout")
    layout.add("one", archive(a="1"), Env=["A=1"])
    layout.add("two", archive(a="2"), Env=["A=2"])
    async with engine() as socket:

        def load(tag: str) -> None:
            argv = ["skopeo", "copy", "--quiet", "--dest-daemon-host", f"unix://{socket}", f"oci:{layout.root}:{tag}", "docker-daemon:py:3"]
            subprocess.run(argv, check=True, timeout=300)

        await asyncio.to_thread(load, "one")
        bases = Bases(tmp_path / "bases", folders=[], engine=str(socket))
        digest = await bases.resolve("docker-daemon:py:3")
        await asyncio.to_thread(load, "two")
        assert await bases.resolve("docker-daemon:py:3") != digest
        store = LayerStore(tmp_path / "images", network=quiet_network(), bases=bases)
        image = ImageManifest(name="ref", base="reference", reference="docker-daemon:py:3", digest=digest)
        layers = await store.ensure(image, tmp_path, print, ScriptedRunner())
        assert (layers[1].path / "a").read_text() == "1"
        assert (await store.config(image)).env == {"A": "1"}
        with pytest.raises(ImageFailed):
            await bases.resolve("docker-daemon:none:1")


async def test_a_cached_image_costs_next_to_nothing(tmp_path: Path, registry: Registry) -> None:
    """[A7]: under a second for an image whose layers are there; by CPU time, since a wall clock measures the neighbours."""
    layout = ImageFolder(tmp_path / "layout")
    layout.add("one", *(archive(a=str(number)) for number in range(20)))
    digest, name = registry.push(layout.root, "one", "py:3"), f"{registry.address}/py:3"
    host = Host(tmp_path / "one")
    steps = tuple(ImageStep(kind="run", argv=("write", f"f{number}")) for number in range(20))
    image = ImageManifest(name="ref", base="reference", reference=name, digest=digest, steps=steps)
    runner = ScriptedRunner()
    await host.store.ensure(image, tmp_path, print, runner)
    ran, before = len(runner.ran), resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    await host.store.ensure(image, tmp_path, print, runner)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
    assert resource.getrusage(resource.RUSAGE_CHILDREN) == children, "no program was started"
    assert len(runner.ran) == ran
