"""The requests of hostd about images. The layers are its own; builds happen in sandboxes [A7]."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from helmr.host.hostd import bundles, failure
from helmr.host.hostd.params import Params, text, value
from helmr.host.hostd.rpc import Connection
from helmr.host.sandbox.guestfiles import ensure_runtime
from helmr.host.sandbox.images import LayerStore
from helmr.host.sandbox.images.imports import Imports
from helmr.host.sandbox.images.network import BuildNetwork
from helmr.host.sandbox.images.store import IDLE_SECONDS
from helmr.host.sandbox.runner import BuildRunner
from helmr.protocol.manifest import ImageBase, ImageManifest

if TYPE_CHECKING:
    from helmr.host.hostd.daemon import Hostd


class ImageMethods:
    """`creating` is held while a Computer is made: what it is made of is on nobody's record before the end of that."""

    def __init__(self, hostd: Hostd, creating: asyncio.Lock) -> None:
        self._hostd = hostd
        self._creating = creating
        self._layers: LayerStore | None = None

    def store(self) -> LayerStore:
        if self._layers is None:
            self._layers = LayerStore(self._hostd.config.state / "images", network=BuildNetwork(exemptions=self._hostd.config.exemptions))
        return self._layers

    async def ensure(self, connection: Connection, params: Params) -> Mapping[str, Any]:
        request, image = text(params, "request"), value(ImageManifest, params, "image")

        def log(text: str) -> None:
            connection.notify("image.log", {"request": request, "text": text})

        driver, builder = self._hostd.driver, self._hostd.driver.builder
        if builder is None:
            if any(step.kind not in ("env", "workdir", "user") for step in image.steps) or image.base != "host":
                raise failure.NotSupported(f"The {driver.name} driver builds no images; it runs on the host's own files.")
            return {"layers": []}

        def runner(base: ImageBase) -> BuildRunner:
            return BuildRunner(builder, host_base=base == "host")

        imports = await self._imports(params, connection.peer.uid)
        blobs = Path(text(params, "blobs"))
        layers = await self.store().ensure(image, blobs, log, runner(image.base), runners=runner, imports=imports)
        return {"layers": [layer.key for layer in layers]}

    async def _imports(self, params: Params, uid: int) -> Imports | None:
        """`imports`: `digest`, `path` and `files` of a bundle whose files are to be imported in the image; a worker of before says none."""
        given: Any = params.get("imports")
        if given is None:
            return None
        if not isinstance(given, dict):
            raise failure.InvalidRequest('"imports" must be an object.')
        asked = cast("dict[str, Any]", given)
        digest, path, files = text(asked, "digest"), Path(text(asked, "path")), asked.get("files")
        if not isinstance(files, list) or not all(isinstance(file, str) for file in cast("list[Any]", files)):
            raise failure.InvalidRequest('"files" must be a list of texts.')
        return Imports(
            digest=digest,
            files=tuple(cast("list[str]", files)),
            lay=lambda folder: bundles.place(path, folder, digest, uid),
            runtime=await asyncio.to_thread(ensure_runtime, self._hostd.config.state / "runtime"),
        )

    async def resolve(self, connection: Connection, params: Params) -> Mapping[str, Any]:
        """What a tag names now [A7]."""
        if self._hostd.driver.builder is None:
            raise failure.NotSupported(f"The {self._hostd.driver.name} driver builds no images; it runs on the host's own files.")
        return {"digest": await self.store().resolve(text(params, "reference"))}

    async def collect(self, connection: Connection, params: Params) -> Mapping[str, Any]:
        """Layers that no Computer of this host was made of, and that the worker doesn't ask to keep [C7]."""
        keep: Any = params.get("keep", [])
        if not isinstance(keep, list):
            raise failure.InvalidRequest('"keep" must be a list of the keys of layers.')
        idle = params.get("idle_seconds", IDLE_SECONDS)
        if not isinstance(idle, (int, float)) or idle < 0:
            raise failure.InvalidRequest('"idle_seconds" must be a number from 0.')
        if self._hostd.driver.builder is None:
            return {"removed": [], "bytes": 0}
        async with self._creating:  # a Computer that is just being made has its record afterwards
            used = {key for computer in self._hostd.computers.values() for key in computer.record.layers}
            aside = self.store().set_aside(used | set(map(str, cast("list[Any]", keep))), idle_seconds=float(idle))
        return {"removed": list(aside), "bytes": await self.store().free(aside)}
