"""Images on this host: what their steps copy is fetched, then hostd makes the layers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from helmr.host.worker import caches
from helmr.host.worker.bundles import Bundles
from helmr.host.worker.gate import HostdGate
from helmr.objects import read_listing
from helmr.objects.listing import blobs_of
from helmr.objects.store import check_digest
from helmr.protocol.ids import new_id, parse_id
from helmr.protocol.manifest import ImageManifest


class Images:
    """Makes images through hostd; blobs of an Environment's images lie as files by digest in a folder of that Environment."""

    def __init__(self, root: Path, bundles: Bundles, gate: HostdGate) -> None:
        self._root = root
        self._bundles = bundles
        self._gate = gate

    async def ensure(
        self, environment: str, image: ImageManifest, request: str | None = None, imports: Mapping[str, Any] | None = None
    ) -> list[str]:
        """The keys of the image's layers, bottom first. `request` names it in hostd's image.log notifications.

        `imports` are the `files` of a `bundle` that the image must be able to import [D2].
        """
        folder = await self._gather(environment, image)
        tried = None
        if imports is not None:
            digest = check_digest(str(imports["bundle"]))
            path = await self._bundles.folder(environment, digest)
            tried = {"digest": digest, "path": str(path), "files": [str(file) for file in imports["files"]]}
        reply = await self._gate.ensure_image(request or new_id(), image, folder, tried)
        return [str(key) for key in reply["layers"]]

    async def resolve(self, references: Iterable[str]) -> dict[str, str]:
        """The digest of what each reference names now, asked for one after another."""
        return {reference: await self._gate.resolve_image(reference) for reference in sorted(set(references))}

    async def _gather(self, environment: str, image: ImageManifest) -> Path:
        folder = self._root / parse_id(environment, "environment")
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        listings = await self._bundles.fetch_all(environment, copied(image))
        wanted = dict(listings)
        for path in listings.values():
            listing = read_listing(await asyncio.to_thread(path.read_bytes))
            wanted |= await self._bundles.fetch_all(environment, blobs_of(listing))
        await asyncio.to_thread(_collect, folder, wanted)
        return folder


def copied(image: ImageManifest) -> Iterator[str]:
    """The digests of the listings that an image's steps copy, also of images that it copies from."""
    for step in image.steps:
        if step.kind == "copy" and step.blob:
            yield check_digest(step.blob)
        if step.image is not None:
            yield from copied(step.image)


def _collect(folder: Path, blobs: Mapping[str, Path]) -> None:
    """Name each blob in `folder` by its digest: linked where that is possible, else copied aside and renamed."""
    for digest, path in blobs.items():
        place = folder / digest
        with contextlib.suppress(FileNotFoundError):
            caches.used(place)
            continue
        aside = folder / f".{digest}.{new_id()}"
        try:
            try:
                os.link(path, aside, follow_symlinks=False)
            except OSError:
                aside.write_bytes(path.read_bytes())
            aside.replace(place)
        finally:
            aside.unlink(missing_ok=True)
