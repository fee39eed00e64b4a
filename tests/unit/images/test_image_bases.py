"""Bases other than the host: layouts and archives, unpacked as a stranger's, and clear words where nothing can be had [A7], [A9]."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.unit.images.scripted_steps import ScriptedRunner, quiet_network

from helmr.host.sandbox.images import Bases, ImageConfig, LayerStore
from helmr.host.sandbox.images.unpack import unpack
from helmr.protocol.errors import ImageFailed, ImageUnsupported
from helmr.protocol.manifest import ImageManifest

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.geteuid() != 0, reason="owners and whiteouts need root")]

Entry = tuple[str, dict[str, Any]]


def tar(*entries: Entry) -> bytes:
    """An archive; each entry is a name and members of its header, and `data`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, members in entries:
            info = tarfile.TarInfo(name)
            data = members.pop("data", b"")
            info.size, info.mode = len(data), 0o644
            for key, value in members.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def folder(name: str, **members: Any) -> Entry:
    return name, {"type": tarfile.DIRTYPE, "mode": 0o755, **members}


def file(name: str, data: bytes = b"", **members: Any) -> Entry:
    return name, {"data": data, **members}


def link(name: str, target: str) -> Entry:
    return name, {"type": tarfile.SYMTYPE, "linkname": target}


def hard(name: str, target: str) -> Entry:
    return name, {"type": tarfile.LNKTYPE, "linkname": target}


def layer(tmp_path: Path, name: str, *entries: Entry, below: tuple[Path, ...] = (), pack: Callable[[bytes], bytes] = bytes) -> Path:
    data = pack(tar(*entries))
    target = tmp_path / name
    target.mkdir()
    unpack(io.BytesIO(data), hashlib.sha256(data).hexdigest(), target, below)
    return target


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_layer_is_unpacked_with_owners_modes_times_and_links(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    root = layer(
        tmp_path,
        "one",
        folder("./", mode=0o711),
        folder("opt/d", uid=5, gid=6, mode=0o2750, mtime=1000),
        file("opt/d/f", b"x" * 100_000, uid=1000, gid=7, mode=0o4755, mtime=2000),
        hard("opt/d/h", "opt/d/f"),
        link("opt/l", "d/f"),
        link("opt/outside", "/etc/passwd"),
        ("opt/p", {"type": tarfile.FIFOTYPE}),
        ("dev/null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        file("/absolute"),
        pack=pack,
    )
    assert root.stat().st_mode & 0o777 == 0o711
    found = (root / "opt/d").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), found.st_mtime) == (5, 6, 0o2750, 1000)
    found = (root / "opt/d/f").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), found.st_mtime) == (1000, 7, 0o4755, 2000)
    assert (root / "opt/d/f").read_bytes() == b"x" * 100_000
    assert (root / "opt/d/h").samefile(root / "opt/d/f")
    assert os.readlink(root / "opt/outside") == "/etc/passwd"
    assert stat.S_ISFIFO((root / "opt/p").lstat().st_mode)
    assert os.listdir(root / "dev") == []
    assert (root / "absolute").exists()


def test_whiteouts_become_the_overlays_own(tmp_path: Path) -> None:
    root = layer(
        tmp_path,
        "one",
        file("a/.wh.gone"),
        file("b/.wh..wh..opq"),
        file("b/new"),
        file("c/both"),
        file("c/.wh.both"),
        file("d/.wh.later"),
        file("d/later", b"x"),
    )
    found = (root / "a/gone").lstat()
    assert stat.S_ISCHR(found.st_mode)
    assert found.st_rdev == 0
    assert os.getxattr(root / "b", "trusted.overlay.opaque") == b"y"
    assert (root / "b/new").is_file()
    assert (root / "c/both").is_file(), "a whiteout is about the layers below"
    assert (root / "d/later").read_bytes() == b"x"


def test_a_path_goes_through_the_links_of_the_layers_below(tmp_path: Path) -> None:
    below = layer(tmp_path, "one", folder("usr/bin"), link("bin", "usr/bin"), link("deep", "/bin/../bin"))
    root = layer(tmp_path, "two", file("bin/tool", b"t"), file("deep/other"), below=(below,))
    assert sorted(os.listdir(root)) == ["usr"]
    assert sorted(os.listdir(root / "usr/bin")) == ["other", "tool"]


def test_nothing_is_written_outside_whatever_the_archive_says(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    root = layer(
        tmp_path,
        "one",
        link("exit", str(outside)),
        file("exit/evil"),
        link("up", "../../../../.." + str(outside)),
        file("up/evil"),
        file("exit/.wh.kept"),
        link("loose", str(outside / "kept")),
        file("loose", b"overwritten"),
    )
    assert os.listdir(outside) == ["kept"]
    assert (outside / "kept").read_text() == "kept"
    assert (root / "loose").read_bytes() == b"overwritten"
    assert (root / str(outside)[1:] / "evil").is_file(), "inside, the link leads to the same path within the image"


@pytest.mark.parametrize(
    "entries",
    [
        (file("../evil"),),
        (file("a/../../evil"),),
        (hard("h", "../../etc/passwd"),),
        (hard("h", "/etc/passwd"),),
        (file("f"), file("f/below")),
        (link("a", "b"), link("b", "a"), file("a/x")),
        (file("a/.wh..."[:-1]),),
        (file("f", uid=70000),),
        (file("x" * 300),),
    ],
)
def test_an_archive_that_does_what_none_should_is_refused(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    with pytest.raises(ImageFailed):
        layer(tmp_path, "one", *entries)
    assert sorted(os.listdir(tmp_path)) == ["one"]


@pytest.mark.parametrize("damage", [lambda data: data[:-2000], lambda data: b"\x1f\x8b" + data, lambda data: data + b"more"])
def test_damaged_bytes_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    data = tar(file("f", os.urandom(50_000)))
    (tmp_path / "one").mkdir()
    with pytest.raises(ImageFailed):
        unpack(io.BytesIO(damage(data)), hashlib.sha256(data).hexdigest(), tmp_path / "one", [])


class LayoutWriter:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs/sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.root / "blobs/sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def image(self, *layers: bytes, **config: Any) -> dict[str, Any]:
        manifest = {"config": self.blob(json.dumps({"config": config}).encode()), "layers": [self.blob(data) for data in layers]}
        return self.blob(json.dumps(manifest).encode())

    def index(self, *entries: dict[str, Any]) -> None:
        (self.root / "index.json").write_text(json.dumps({"manifests": entries}))


def named(entry: dict[str, Any], tag: str) -> dict[str, Any]:
    return {**entry, "annotations": {"org.opencontainers.image.ref.name": tag}}


def reference(text: str) -> ImageManifest:
    return ImageManifest(name="ref", base="reference", reference=text)


@pytest.fixture
def layout(tmp_path: Path) -> LayoutWriter:
    return LayoutWriter(tmp_path / "allowed/layout")


def store(tmp_path: Path) -> LayerStore:
    bases = Bases(tmp_path / "images/bases", folders=[tmp_path / "allowed"], skopeo=None)
    return LayerStore(tmp_path / "images", network=quiet_network(), bases=bases)


async def test_an_image_of_a_layout_is_its_layers_over_a_floor_and_its_configuration(tmp_path: Path, layout: LayoutWriter) -> None:
    old = layout.image(tar(file("old")))
    new = layout.image(gzip.compress(tar(file("a"))), tar(file("b")), Env=["PATH=/x", "A=b=c"], WorkingDir="/srv", User="7")
    layout.index(named(old, "1"), named(new, "2"))
    images, runner = store(tmp_path), ScriptedRunner()
    image = reference(f"oci:{layout.root}:2")
    found = await images.ensure(image, tmp_path, print, runner)
    assert (found[0].path / "workspace").is_dir()
    assert [sorted(os.listdir(one.path)) for one in found[1:3]] == [["a"], ["b"]]
    assert await images.config(image) == ImageConfig(env={"PATH": "/x", "A": "b=c"}, workdir="/srv", user="7")
    assert len(runner.ran) == 2, "whether Python runs is tried once, and the declared working directory is made"
    assert await images.ensure(image, tmp_path, print, runner) == found
    assert len(runner.ran) == 2


async def test_an_archive_is_a_layout_and_an_index_is_searched_for_this_machine(tmp_path: Path, layout: LayoutWriter) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    ours = {**layout.image(tar(file("ours"))), "platform": {"os": "linux", "architecture": machine}}
    other = {**layout.image(tar(file("other"))), "platform": {"os": "linux", "architecture": "s390x"}}
    layout.index(layout.blob(json.dumps({"manifests": [other, ours]}).encode()))
    with tarfile.open(tmp_path / "allowed/image.tar", "w") as archive:
        archive.add(layout.root, ".")
    found = await store(tmp_path).ensure(reference(f"oci-archive:{tmp_path}/allowed/image.tar"), tmp_path, print, ScriptedRunner())
    assert os.listdir(found[1].path) == ["ours"]


async def test_a_blob_that_changed_is_refused(tmp_path: Path, layout: LayoutWriter) -> None:
    data = tar(file("a"))
    layout.index(layout.image(data))
    (layout.root / "blobs/sha256" / hashlib.sha256(data).hexdigest()).write_bytes(tar(file("b")))
    images = store(tmp_path)
    with pytest.raises(ImageFailed, match="other bytes"):
        await images.ensure(reference(f"oci:{layout.root}"), tmp_path, print, ScriptedRunner())
    assert len(images.keys()) == 1


async def test_a_recipe_can_not_make_the_host_read_what_its_operator_did_not_name(tmp_path: Path, layout: LayoutWriter) -> None:
    layout.index(layout.image(tar(file("a"))))
    outside = tmp_path / "private"
    layout.root.rename(outside)
    (tmp_path / "allowed/link").symlink_to(outside)
    for path in (outside, tmp_path / "allowed/link", tmp_path / "allowed/../private"):
        with pytest.raises(ImageFailed, match="HELMR_IMAGE_FOLDERS"):
            await store(tmp_path).ensure(reference(f"oci:{path}"), tmp_path, print, ScriptedRunner())


async def test_an_image_that_the_workers_python_does_not_run_in_is_unsupported(tmp_path: Path, layout: LayoutWriter) -> None:
    layout.index(layout.image(tar(file("a"))))

    class Musl(ScriptedRunner):
        async def run(self, *arguments: Any, **members: Any) -> int:
            return 127

    with pytest.raises(ImageUnsupported):
        await store(tmp_path).ensure(reference(f"oci:{layout.root}"), tmp_path, print, Musl())


async def test_without_a_way_to_a_registry_the_failure_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageFailed) as failed:
        await store(tmp_path).ensure(reference("python:3.12-slim"), tmp_path, print, ScriptedRunner())
    for word in ("python:3.12-slim", "skopeo", "[tool.helmr.images]", "oci-archive:"):
        assert word in str(failed.value)


SKOPEO = """#!/bin/sh
echo "copying $4"
case "$4" in *missing*) echo no such image; exit 1;; esac
cp -r {layout}/. "${{5#oci:}}"
"""


async def test_a_registrys_image_comes_through_skopeo_once_and_by_its_digest(tmp_path: Path, layout: LayoutWriter) -> None:
    layout.index(layout.image(tar(file("a"))))
    skopeo = tmp_path / "skopeo"
    skopeo.write_text(SKOPEO.format(layout=layout.root))
    skopeo.chmod(0o755)
    images = LayerStore(tmp_path / "images", network=quiet_network(), bases=Bases(tmp_path / "bases", skopeo=str(skopeo)))
    log: list[str] = []
    pinned = ImageManifest(name="ref", base="reference", reference="corp.test:5000/x/py:3", digest="sha256:" + "a" * 64)
    for _ in range(2):
        await images.ensure(pinned, tmp_path, log.append, ScriptedRunner())
    assert [line for line in log if "copying" in line] == ["copying docker://corp.test:5000/x/py@sha256:" + "a" * 64]
    with pytest.raises(ImageFailed, match="no such image"):
        await images.ensure(reference("missing:1"), tmp_path, log.append, ScriptedRunner())
    assert len(os.listdir(tmp_path / "bases")) == 1
