"""What stands below the first step: the host, or an image of a registry, a layout or an archive [A7]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from helmr.host.sandbox import hostbase
from helmr.host.sandbox.images.keys import base_key
from helmr.protocol.errors import ImageFailed
from helmr.protocol.imageconfig import ImageConfig
from helmr.protocol.manifest import ImageManifest

if TYPE_CHECKING:
    from helmr.host.sandbox.images.store import Layer

Make = Callable[[str, str, Callable[[Path], Awaitable[None]], Callable[[str], None]], Awaitable["Layer"]]
"""Gives the layer of a key, a title and a builder: the store's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    key: str
    layers: Sequence[Layer] = ()
    config: ImageConfig = field(default_factory=ImageConfig)


class Bases:
    """Finds bases; what it unpacks are layers like others, what it must remember lies under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def ensure(self, image: ImageManifest, log: Callable[[str], None], make: Make) -> Base:
        """The base of `image`, made when it is missing. Raises `ImageFailed` that says what to do."""
        if image.base == "host":
            return Base(key=base_key("host", hostbase.fingerprint()))
        raise ImageFailed(f"The base {image.reference} can't be had on this host.", image=image.name, step=0)

    async def config(self, image: ImageManifest) -> ImageConfig:
        """What the base declares; nothing, for the host."""
        return ImageConfig()
