"""What stands below the first step: the host, or an image of a layout, an archive or a registry [A7]."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmr.host.sandbox import hostbase
from helmr.host.sandbox.images.keys import base_key
from helmr.host.sandbox.images.layout import Layout, LayoutImage, unpack_archive
from helmr.host.sandbox.images.unpack import unpack
from helmr.protocol.errors import ImageFailed
from helmr.protocol.imageconfig import ImageConfig
from helmr.protocol.manifest import ImageManifest

if TYPE_CHECKING:
    from helmr.host.sandbox.images.layers import Layer

FOLDERS_VARIABLE: Final = "HELMR_IMAGE_FOLDERS"
"""Folders, divided by colons, in which recipes may name layouts and archives. The operator's word: hostd reads them with its own rights."""
PULL_SECONDS: Final = 900.0

Log = Callable[[str], None]
Make = Callable[[str, str, Callable[[Path], Awaitable[None]], Log], Awaitable["Layer"]]
"""Gives the layer of a key, a title and a builder: the store's own."""

_FLOOR: Final = ("dev", "etc", "home", "opt/helmr", "proc", "root", "run", "sys", "tmp", "usr", "var", "workspace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    key: str
    layers: Sequence[Layer] = ()
    config: ImageConfig = field(default_factory=ImageConfig)


class Bases:
    """Finds bases. What it unpacks are layers like others; layouts that it had to fetch lie under `root`.

    `folders` are those in which `oci:PATH[:TAG]` and `oci-archive:PATH[:TAG]` may lie; by default the variable HELMR_IMAGE_FOLDERS says.
    """

    def __init__(self, root: Path, *, folders: Sequence[Path] | None = None, skopeo: str | None = None) -> None:
        self._root = root
        named = [Path(path) for path in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if path]
        self._folders = [folder.resolve() for folder in (named if folders is None else folders)]
        self._skopeo = skopeo or shutil.which("skopeo")

    async def ensure(self, image: ImageManifest, log: Log, make: Make) -> Base:
        """The base of `image`, made when it is missing. Raises `ImageFailed` that says what to do."""
        if image.base == "host":
            return Base(key=base_key("host", hostbase.fingerprint()))
        layout, found = await self._find(image, log)
        parent = base_key("floor")
        layers = [await make(parent, "folders that every Computer has", _make_floor, log)]
        for digest in found.layers:
            parent = base_key("oci", parent, digest)
            below = [layer.path for layer in layers]
            title = f"unpack layer {digest[:12]} of {image.reference}"
            layers.append(
                await make(parent, title, lambda folder, d=digest, w=below: asyncio.to_thread(_unpack, layout, d, folder, w), log)
            )
        return Base(key=base_key("image", found.digest, parent), layers=layers, config=found.config)

    async def config(self, image: ImageManifest) -> ImageConfig:
        """What the base declares; nothing, for the host."""
        if image.base == "host":
            return ImageConfig()
        _, found = await self._find(image, lambda _: None)
        return found.config

    async def _find(self, image: ImageManifest, log: Log) -> tuple[Layout, LayoutImage]:
        kind, colon, rest = image.reference.partition(":")
        if colon and kind in ("oci", "oci-archive") and rest.startswith("/"):
            path, tag = _path_and_tag(rest)
            self._check_inside(path)
            root = path if kind == "oci" else await self._from_archive(path)
        else:
            root, tag = await self._pulled(image, log), None
        layout = Layout(root)
        return layout, await asyncio.to_thread(layout.image, tag)

    def _check_inside(self, path: Path) -> None:
        resolved = path.resolve()
        if not any(resolved.is_relative_to(folder) for folder in self._folders):
            raise ImageFailed(f"{path} is in no folder that this host takes images from. Its operator names them in {FOLDERS_VARIABLE}.")

    async def _from_archive(self, archive: Path) -> Path:
        try:
            found = await asyncio.to_thread(archive.stat)
        except OSError as error:
            raise ImageFailed(f"The archive {archive} can't be read: {error.strerror}.") from None
        name = hashlib.sha256(f"{archive}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}".encode()).hexdigest()
        return await self._made(name, lambda folder: asyncio.to_thread(unpack_archive, archive, folder))

    async def _pulled(self, image: ImageManifest, log: Log) -> Path:
        if self._skopeo is None:
            raise ImageFailed(
                f"The image {image.reference} can't be had: this host has no skopeo to fetch it with. Install skopeo, or map the name in "
                f'[tool.helmr.images] to "host", or to "oci:/PATH:TAG" or "oci-archive:/PATH" in a folder of {FOLDERS_VARIABLE}.'
            )
        name = _pinned(image.reference, image.digest) if image.digest else image.reference
        return await self._made(hashlib.sha256(name.encode()).hexdigest(), lambda folder: self._pull(name, folder, log))

    async def _pull(self, name: str, folder: Path, log: Log) -> None:
        log(f"fetch {name}")
        argv = [str(self._skopeo), "copy", "--override-os", "linux", f"docker://{name}", f"oci:{folder}"]
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        last = ""
        try:
            assert process.stdout is not None
            async with asyncio.timeout(PULL_SECONDS):
                async for line in process.stdout:
                    last = line.decode(errors="replace").rstrip()
                    log(last)
                code = await process.wait()
        except TimeoutError:
            raise ImageFailed(f"The image {name} could not be fetched within {PULL_SECONDS:g} s.") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code != 0:
            raise ImageFailed(f"The image {name} could not be fetched: {last}")

    async def _made(self, name: str, make: Callable[[Path], Awaitable[None]]) -> Path:
        """The folder `name` under `root`, made aside and renamed."""
        target = self._root / name
        if await asyncio.to_thread(target.is_dir):
            return target
        await asyncio.to_thread(self._sweep)
        aside = self._root / f".{name}.{secrets.token_hex(4)}"
        await asyncio.to_thread(aside.mkdir)
        held = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            await make(aside)
            try:
                aside.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
            return target
        finally:
            os.close(held)
            if aside.exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, aside))

    def _sweep(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for path in self._root.glob(".*"):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # being made
            else:
                shutil.rmtree(path)
            finally:
                os.close(held)


async def _make_floor(folder: Path) -> None:
    for name in _FLOOR:
        (folder / name).mkdir(parents=True)
        (folder / name).chmod({"tmp": 0o1777, "root": 0o700}.get(name, 0o755))


def _unpack(layout: Layout, digest: str, folder: Path, below: Sequence[Path]) -> None:
    with layout.open(digest) as archive:
        unpack(archive, digest, folder, below)


def _pinned(reference: str, digest: str) -> str:
    """The reference with its digest in the place of its tag."""
    name = reference.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@sha256:{digest.removeprefix('sha256:')}"


def _path_and_tag(text: str) -> tuple[Path, str | None]:
    path, colon, tag = text.rpartition(":")
    return (Path(path), tag) if colon and "/" not in tag else (Path(text), None)
