"""Old Deployments lose their blobs, and blobs that no Deployment names go. SPEC [D3], UD-94.

Three steps, each whole in itself, so that a crash between any two leaves the rest to the next run:
a Deployment that nothing needs is marked with since when; one that was unneeded for long enough is collected, which is a commit that no
promotion overlaps; blobs of an Environment that none of its other Deployments names leave its list, and the store when no Environment
lists them. What a publisher was told is there stays for `Kept.blob_hours` after that, so no publication loses what it counts on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.control.domain.collection import Candidate, decide_collection
from helmr.control.service.builds import read_manifest
from helmr.control.service.core import Core, Effects
from helmr.control.store.pool import Connection
from helmr.control.store.queries import deployments, identity
from helmr.objects.listing import File, Listing, read_listing
from helmr.objects.store import BlobStore
from helmr.protocol.errors import BlobNotFound, ListingInvalid
from helmr.protocol.manifest import Manifest, listings

SWEEP_SECONDS: Final = 86_400.0
"""How often the blobs of one Environment are gone through, at most."""
BATCH: Final = 1000

log = structlog.get_logger("helmr.deployments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A Deployment keeps its blobs for `days` after the last need of it, and the `latest` of an Environment keep them whatever their age.
    A blob stays for `blob_hours` after a publisher put it or asked for it."""

    days: float = 30
    latest: int = 10
    blob_hours: float = 24


class DeploymentCollection:
    def __init__(self, core: Core, blobs: BlobStore) -> None:
        self._core = core
        self._blobs = blobs
        self._swept: dict[str, float] = {}
        self._orphans: frozenset[str] = frozenset()
        """Blobs of no Environment, as of the run before: one that is being put is not listed yet either."""

    async def run(self, kept: Kept, *, sweep_seconds: float = SWEEP_SECONDS) -> None:
        """Mark, collect, sweep."""
        async with self._core.database.connection() as connection:
            await deployments.mark_unneeded(connection)
            due = await deployments.environments_to_collect(connection, days=kept.days)
        for row in due:
            await self._collect(row["environment_id"], kept)
        async with self._core.database.connection() as connection:
            rows = await deployments.environments_with_old_blobs(connection, hours=kept.blob_hours)
        for row in rows:
            environment_id = str(row["environment_id"])
            if time.monotonic() - self._swept.get(environment_id, float("-inf")) >= sweep_seconds:
                await self._sweep(environment_id, kept)
                self._swept[environment_id] = time.monotonic()
        await self._delete_orphans()

    async def _collect(self, environment_id: Any, kept: Kept) -> None:
        async def work(connection: Connection, effects: Effects) -> int:
            await identity.lock_environment(connection, id=environment_id)
            rows = await deployments.collection_candidates(connection, environment_id=environment_id)
            before = await deployments.days_ago(connection, days=kept.days)
            candidates = [
                Candidate(id=row["id"], deployed=row["status"] == "deployed", needed=row["needed"], unneeded_since=row["unneeded_since"])
                for row in rows
            ]
            chosen = decide_collection(candidates, before=before, keep=kept.latest)
            await deployments.collect_deployments(connection, ids=chosen)
            return len(chosen)

        count = await self._core.write("collect_deployments", work)
        if count:
            log.info("old deployments are collected", environment=str(environment_id), count=count)

    async def _sweep(self, environment_id: str, kept: Kept) -> None:
        """Take from the Environment's list what none of its Deployments names and nobody asked for lately.

        A Deployment that appears meanwhile names only blobs that were asked for just now.
        """
        async with self._core.database.connection() as connection:
            rows = await deployments.uncollected_manifests(connection, environment_id=environment_id)
        try:
            named = await self._named(read_manifest(row["manifest"]) for row in rows)
        except (BlobNotFound, ListingInvalid) as error:
            # What that one names is not known, so nothing may go.
            log.error("a listing of a deployment can't be read; no blob is collected", environment=environment_id, error=error.detail)
            return

        async def work(connection: Connection, effects: Effects) -> int:
            return await deployments.forget_blobs(connection, environment_id=environment_id, named=sorted(named), hours=kept.blob_hours)

        count = await self._core.write("forget_blobs", work)
        if count:
            log.info("blobs are collected", environment=environment_id, count=count)

    async def _named(self, manifests: Iterable[Manifest]) -> set[str]:
        outer = {digest for manifest in manifests for digest in listings(manifest)}
        named = set(outer)
        for digest in outer:
            path = await self._blobs.path(digest)
            listing = await asyncio.to_thread(_listing_in, path)
            named |= {entry.blob for entry in listing.values() if isinstance(entry, File)}
        return named

    async def _delete_orphans(self) -> None:
        """Delete blobs that no Environment lists, and that none listed at the run before."""
        found: set[str] = set()
        async for batch in _batches(self._blobs.iterate()):
            async with self._core.database.connection() as connection:
                found |= {row["digest"] for row in await deployments.orphaned_blobs(connection, digests=batch)}
        for digest in sorted(found & self._orphans):

            async def work(connection: Connection, effects: Effects, digest: str = digest) -> None:
                # With the lock that putting it takes: a file that goes is quick, and a row without its file would be for ever.
                await deployments.lock_blob(connection, digest=digest)
                if await deployments.orphaned_blobs(connection, digests=[digest]):
                    await self._blobs.delete(digest)

            await self._core.write("delete_blob", work)
        self._orphans = frozenset(found - self._orphans)


def _listing_in(path: Path) -> Listing:
    return read_listing(path.read_bytes())


async def _batches(digests: AsyncIterator[str]) -> AsyncIterator[list[str]]:
    batch: list[str] = []
    async for digest in digests:
        batch.append(digest)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
