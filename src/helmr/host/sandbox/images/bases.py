"""What stands below the first step: the host, or an image of a layout, an archive, an engine or a registry [A7]."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmr.host.sandbox import hostbase
from helmr.host.sandbox.images.keys import base_key
from helmr.host.sandbox.images.layout import Layout, LayoutImage
from helmr.host.sandbox.images.sources import Sources
from helmr.host.sandbox.images.unpack import unpack
from helmr.protocol.imageconfig import ImageConfig
from helmr.protocol.manifest import ImageManifest
from helmr.protocol.wire import from_wire, to_wire

if TYPE_CHECKING:
    from helmr.host.sandbox.images.layers import Layer

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
    """Bases as layers. What a pinned image consists of is remembered under `root`: once unpacked, its source is asked no more."""

    def __init__(self, root: Path, *, folders: Sequence[Path] | None = None, skopeo: str | None = None, engine: str | None = None) -> None:
        self._known = root / "known"
        self._sources = Sources(root, folders=folders, skopeo=skopeo, engine=engine)
        self._using: Counter[tuple[str, str]] = Counter()

    async def resolve(self, reference: str) -> str:
        """The digest of what `reference` names now. Raises `ImageFailed`."""
        return await self._sources.resolve(reference)

    async def ensure(self, image: ImageManifest, log: Log, make: Make) -> Base:
        """The base of `image`, made when it is missing. Raises `ImageFailed` that says what to do."""
        if image.base == "host":
            return Base(key=base_key("host", hostbase.fingerprint()))
        use = (image.reference, image.digest)
        self._using[use] += 1
        try:
            return await self._ensure(image, log, make)
        finally:
            self._using[use] -= 1
            if not self._using[use]:
                del self._using[use]
                await self._sources.forget(image)

    async def config(self, image: ImageManifest) -> ImageConfig:
        """What the base declares; nothing, for the host."""
        if image.base == "host":
            return ImageConfig()
        return (await self._described(image, lambda _: None)).config

    async def _ensure(self, image: ImageManifest, log: Log, make: Make) -> Base:
        found = await self._described(image, log)
        parent = base_key("floor")
        layers = [await make(parent, "folders that every Computer has", _make_floor, log)]
        for digest in found.layers:
            parent = base_key("oci", parent, digest)
            below = [layer.path for layer in layers]

            async def build(folder: Path, digest: str = digest, below: Sequence[Path] = below) -> None:
                layout, _ = await self._sources.find(image, log)
                await asyncio.to_thread(_unpack, layout, digest, folder, below)

            layers.append(await make(parent, f"unpack layer {digest[:12]} of {image.reference}", build, log))
        return Base(key=base_key("image", found.digest, parent), layers=layers, config=found.config)

    async def _described(self, image: ImageManifest, log: Log) -> LayoutImage:
        """What the image consists of. Only of a pinned one that is the same for ever."""
        path = self._known / hashlib.sha256(f"{image.reference}\0{image.digest}".encode()).hexdigest()
        if image.digest and (known := await asyncio.to_thread(_read, path)) is not None:
            return known
        _, found = await self._sources.find(image, log)
        if image.digest:
            await asyncio.to_thread(_write, path, found)
        return found


def _read(path: Path) -> LayoutImage | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return from_wire(LayoutImage, json.loads(data), str(path))


def _write(path: Path, image: LayoutImage) -> None:
    """Whole or not at all; lost with the power, it is asked for again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with aside.open("w") as file:
        json.dump(to_wire(image), file)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)


async def _make_floor(folder: Path) -> None:
    for name in _FLOOR:
        (folder / name).mkdir(parents=True)
        (folder / name).chmod({"tmp": 0o1777, "root": 0o700}.get(name, 0o755))


def _unpack(layout: Layout, digest: str, folder: Path, below: Sequence[Path]) -> None:
    with layout.open(digest) as archive:
        unpack(archive, digest, folder, below)
