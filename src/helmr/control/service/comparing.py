"""Two Deployments beside each other: definitions from their manifests, files from the listings of their source. SPEC [D3]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from helmr.control.domain.comparison import agents_of, compare, policies_of, templates_of, triggers_of
from helmr.control.service.builds import read_manifest
from helmr.objects.listing import Listing, read_listing
from helmr.objects.store import BlobStore
from helmr.protocol.errors import BlobNotFound
from helmr.protocol.ids import DeploymentId
from helmr.protocol.shapes import Changes, DeploymentDiff
from helmr.protocol.unset import UNSET, UnsetType


async def compare_deployments(blobs: BlobStore, since: Any, row: Any) -> DeploymentDiff:
    """What the Deployment of `row` has otherwise than that of `since`. `files` is left out when the source of either was collected."""
    before, after = read_manifest(since["manifest"]), read_manifest(row["manifest"])
    return DeploymentDiff(
        deployment_id=DeploymentId(str(row["id"])),
        since=DeploymentId(str(since["id"])),
        agents=compare(agents_of(before), agents_of(after)),
        policies=compare(policies_of(before), policies_of(after)),
        triggers=compare(triggers_of(before), triggers_of(after)),
        templates=compare(templates_of(before), templates_of(after)),
        files=await _files(blobs, before.bundle, after.bundle),
    )


async def _files(blobs: BlobStore, before: str, after: str) -> Changes | UnsetType:
    try:
        paths = [await blobs.path(digest) for digest in (before, after)]
        return await asyncio.to_thread(lambda: compare(*map(_listing, paths)))
    except (BlobNotFound, FileNotFoundError):  # the latter when it is collected meanwhile
        return UNSET


def _listing(path: Path) -> Listing:
    return read_listing(path.read_bytes())
