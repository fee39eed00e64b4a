"""`publish()`: a project becomes a Deployment. SPEC [D2]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from helmr.protocol.manifest import Manifest
from helmr.protocol.shapes import Deployment
from helmr.publish.bundle import read_blob
from helmr.publish.discover import discover
from helmr.publish.manifest import Publication, build_publication
from helmr.publish.project import Project

UPLOADS: Final = 8
"""Blobs under way at once."""

ASKED: Final = 1000
"""Digests that one question about missing blobs names."""


class PublishClient(Protocol):
    """What publishing needs of a client; `HelmrClient.deployments` is one."""

    async def missing_blobs(self, digests: Sequence[str]) -> Sequence[str]: ...

    async def put_blob(self, digest: str, content: bytes | Path) -> None: ...

    async def create_deployment(self, manifest: Manifest, promote: bool = True, *, pull: bool = False) -> Deployment: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far publishing is. `done` of `total` count Agents when discovered, blobs while uploading."""

    stage: Literal["discovering", "discovered", "uploading", "created"]
    done: int = 0
    total: int = 0


async def publish(
    client: PublishClient,
    project: Project,
    *,
    promote: bool = True,
    pull: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> Deployment:
    """Discover, check, bundle, upload what the Environment lacks, and create the Deployment, which is then `building`.

    The same content is the same Deployment; with `pull` the images' tags are resolved anew before [A7].
    Raises `PublishError` and its kinds for the project's faults, and what the client raises;
    nothing is visible on the server before the last step, so it can be called again after any failure.
    """
    say = progress or _silent
    say(Progress(stage="discovering"))
    prepared = await prepare(project)
    agents = len(prepared.manifest.agents)
    say(Progress(stage="discovered", done=agents, total=agents))
    await upload(client, prepared, say)
    deployment = await client.create_deployment(prepared.manifest, promote, pull=pull)
    say(Progress(stage="created", done=1, total=1))
    return deployment


async def prepare(project: Project) -> Publication:
    """Everything before the network: the manifest, and where its blobs are. Raises `PublishError` and its kinds."""
    discovery = await discover(project)
    return await asyncio.to_thread(build_publication, project, discovery)


async def upload(client: PublishClient, publication: Publication, say: Callable[[Progress], object]) -> None:
    """Store the blobs that the Environment lacks."""
    digests = sorted(publication.blobs)
    missing: list[str] = []
    for start in range(0, len(digests), ASKED):
        missing += await client.missing_blobs(digests[start : start + ASKED])
    waiting = iter(dict.fromkeys(missing))
    total, done = len(missing), 0
    say(Progress(stage="uploading", done=0, total=total))

    async def sender() -> None:
        nonlocal done
        for digest in waiting:
            await client.put_blob(digest, await asyncio.to_thread(read_blob, publication.blobs[digest], digest))
            done += 1
            say(Progress(stage="uploading", done=done, total=total))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(UPLOADS, total)):
                group.create_task(sender())
    except ExceptionGroup as failed:
        # One refusal stops the others; it is what the caller wants to see.
        raise failed.exceptions[0] from None


def _silent(_: Progress) -> None:
    return None
