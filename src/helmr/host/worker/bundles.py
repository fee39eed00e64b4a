"""Folders of Deployments' sources, made once on this host and shared by every Session that needs them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from helmr.host.worker import caches
from helmr.host.worker.ports import BlobSource
from helmr.objects import lay_out, read_listing
from helmr.objects.listing import blobs_of
from helmr.objects.store import check_digest
from helmr.protocol import jsontext
from helmr.protocol.ids import parse_id

CONCURRENT_FETCHES: Final = 16


class Bundles:
    """The cache of laid-out bundles under `root`, a folder for each Environment and digest."""

    def __init__(self, root: Path, blobs: BlobSource) -> None:
        self._root = root
        self._blobs = blobs
        self._making: dict[tuple[str, str], asyncio.Future[Path]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_FETCHES)

    async def folder(self, environment: str, digest: str) -> Path:
        """The folder of the bundle, whole. Concurrent callers share one making; a caller that is cancelled doesn't end it for others.

        Raises `BlobNotFound`, `ConnectionFailed`, `ListingInvalid`, `DigestMismatch`; the next call tries again then.
        """
        check_digest(digest)
        target = self._root / parse_id(environment, "environment") / digest
        while not await asyncio.to_thread(target.is_dir):
            making = self._making.get((environment, digest))
            if making is None:
                return await self._lead(environment, digest, target)
            await asyncio.wait((making,))
            if not making.cancelled():
                return making.result()
        await asyncio.to_thread(caches.used, target)
        return target

    async def fetch_all(self, environment: str, digests: Iterable[str]) -> dict[str, Path]:
        """Local files of many blobs, fetched beside each other."""
        found: dict[str, Path] = {}

        async def fetch(digest: str) -> None:
            async with self._slots:
                found[digest] = await self._blobs.fetch(environment, digest)

        try:
            async with asyncio.TaskGroup() as group:
                for digest in sorted(set(digests)):
                    group.create_task(fetch(digest))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others were cancelled, or failed for the same reason
        return found

    async def _lead(self, environment: str, digest: str, target: Path) -> Path:
        """Make the folder for all who wait. Should the leader be cancelled, one of the others takes over."""
        making = self._making[environment, digest] = asyncio.get_running_loop().create_future()
        try:
            await self._make(environment, digest, target)
        except Exception as error:
            making.set_exception(error)
            making.exception()  # it may be that nobody waits
            raise
        else:
            making.set_result(target)
            return target
        finally:
            del self._making[environment, digest]
            making.cancel()

    async def _make(self, environment: str, digest: str, target: Path) -> None:
        source = await self._blobs.fetch(environment, digest)
        listing = read_listing(await asyncio.to_thread(source.read_bytes))
        files = await self.fetch_all(environment, blobs_of(listing))

        async def fetched(blob: str) -> Path:
            return files[blob]

        await lay_out(listing, fetched, target)


def zygote_name(bundle: str, preload: list[str]) -> str:
    """Sessions with the same source and the same preloaded modules share a zygote (DESIGN 6)."""
    return hashlib.sha256(jsontext.canonical([bundle, preload])).hexdigest()[:32]
