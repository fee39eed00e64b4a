"""Deployments become whole: tags are pinned to digests, and workers make the images. SPEC [A7], [D2].

A digest that was found once is the Environment's, and is used again until somebody pulls: so every host builds on the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from helmr.control.domain.redaction import Redactor
from helmr.control.service import render
from helmr.control.service.background import Background, Coalesced
from helmr.control.service.build_log import BuildLog
from helmr.control.service.core import Core, Effects
from helmr.control.service.links import Links, WorkerEnd
from helmr.control.service.promotion import make_current
from helmr.control.service.vault import Vault
from helmr.control.store.pool import Connection
from helmr.control.store.queries import deployments, identity
from helmr.protocol import jsontext
from helmr.protocol.errors import CapacityUnavailable, HelmrError, ImageFailed
from helmr.protocol.ids import new_id
from helmr.protocol.link import control
from helmr.protocol.manifest import ImageManifest, Manifest, pinned, references
from helmr.protocol.wire import from_wire, to_wire

BATCH: Final = 100
RESOLVE_SECONDS: Final = 300.0
"""How long a worker may take to say what some tags name."""

log = structlog.get_logger("helmr.builds")


class Builds:
    """Builds on the workers that are linked here; a Deployment stays `building` while there is none."""

    def __init__(self, core: Core, links: Links, vault: Vault) -> None:
        self._core = core
        self._vault = vault
        self._links = links
        self._background = Background()
        self._building = Coalesced(self._background, "build")
        links.on_worker = self.build_pending

    async def stop(self) -> None:
        await self._background.stop()

    def build_pending(self) -> None:
        """Build what is `building`, if a worker is linked here. Called after a publication, at a worker's hello, and by upkeep."""
        self._building.ask("", self._build_all)

    async def resolve(self, environment_id: str, unpinned: Sequence[str]) -> dict[str, str]:
        """What the references name now, asked of a worker that serves the Environment. Raises `CapacityUnavailable` without one,
        `ImageFailed` when it can't tell."""
        end = self._links.any_end(environment_id)
        if end is None:
            raise CapacityUnavailable(
                "No worker is here to ask what the images' tags name now.", hint="Start a worker, or deploy without --pull."
            )
        said = await self._ask(end, "image.resolve", {"references": list(unpinned)}, None, RESOLVE_SECONDS)
        error = said.get("error")
        if error is not None:
            raise ImageFailed(str(error.get("message") or "The worker could not tell what the images' tags name."))
        return {reference: str(said["digests"][reference]) for reference in unpinned}

    # --- details ---

    async def _build_all(self, _: str) -> None:
        tried: set[str] = set()
        while True:
            async with self._core.database.connection() as connection:
                rows = await deployments.deployments_building(connection, count=BATCH)
            for row in rows:
                end = self._links.any_end(str(row["environment_id"]))
                if end is not None and str(row["id"]) not in tried:
                    break
            else:
                return
            tried.add(str(row["id"]))
            await self._build(end, row)

    async def _build(self, end: WorkerEnd, row: Any) -> None:
        """To its end; or, when its worker goes, until another one begins it anew."""
        manifest = read_manifest(row["manifest"])
        said = BuildLog(self._core, row["id"], await self._redactor(row, manifest))
        error: dict[str, Any] | None = None
        async with said:
            try:
                manifest = await self._pin(row, manifest, said)
                for image in _distinct(template.image for template in manifest.templates):
                    imports = {"bundle": manifest.bundle, "files": _files_in(manifest, image)}
                    request = {"environment": str(row["environment_id"]), "image": to_wire(image), "imports": imports}
                    error = (await self._ask(end, "image.build", request, said, None)).get("error")
                    if error is not None:
                        break
            except CapacityUnavailable:
                return
            except HelmrError as failed:
                error = {"code": failed.code, "message": failed.detail}
            error = said.redactor.json(error)
            if error is not None:
                said.add(str(error.get("message") or error["code"]))
        # The log is stored before the status that ends its readers.
        await self._finish(row, error)

    async def _redactor(self, row: Any, manifest: Manifest) -> Redactor:
        """No Secret is given to a build; what one finds of them elsewhere and shows is taken out of its log all the same [X2]."""
        names = {str(binding.get("name")) for template in manifest.templates for binding in template.secrets}
        async with self._core.database.connection() as connection:
            return await self._vault.redactor(connection, str(row["environment_id"]), names)

    async def _pin(self, row: Any, manifest: Manifest, said: BuildLog) -> Manifest:
        """The manifest with every reference pinned, stored as the Deployment's own."""
        unpinned = unpinned_in(manifest)
        async with self._core.database.connection() as connection:
            known = await known_digests(connection, row["environment_id"], unpinned)
        missing = [reference for reference in unpinned if reference not in known]
        found = await self.resolve(str(row["environment_id"]), missing) if missing else {}
        for reference, digest in found.items():
            said.add(f"{reference} is {digest}")
        if pinned(manifest, known | found) == manifest:
            return manifest

        async def work(connection: Connection, effects: Effects) -> Manifest:
            await identity.lock_environment(connection, id=row["environment_id"])
            await deployments.record_digests(
                connection, environment_id=row["environment_id"], references=list(found), digests=list(found.values())
            )
            whole = pinned(manifest, await known_digests(connection, row["environment_id"], unpinned))
            data = to_wire(whole)
            digest = jsontext.fingerprint(data).hex()
            twin = await deployments.deployment_by_digest(connection, environment_id=row["environment_id"], digest=digest)
            # One that was published meanwhile, already pinned, has the digest: this one keeps its own, and is the same otherwise.
            await deployments.pin_deployment(
                connection, id=row["id"], manifest=jsontext.canonical(data), digest=digest if twin is None else row["digest"]
            )
            return whole

        return await self._core.write("pin_deployment", work)

    async def _finish(self, row: Any, error: Mapping[str, Any] | None) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            await identity.lock_environment(connection, id=row["environment_id"])
            now = await deployments.lock_deployment(connection, id=row["id"])
            if now["status"] != "building":
                return
            status = "failed" if error is not None else "deployed"
            stored = render.error(error["code"], error.get("message")) if error is not None else None
            await deployments.finish_deployment(connection, id=row["id"], status=status, error=stored)
            if status == "deployed" and now["promote_when_ready"]:
                await make_current(connection, row["environment_id"], row["id"], read_manifest(now["manifest"]))

        await self._core.write("finish_deployment", work)

    async def _ask(
        self, end: WorkerEnd, kind: str, members: Mapping[str, Any], said: BuildLog | None, seconds: float | None
    ) -> Mapping[str, Any]:
        """A worker's answer to one request; its log lines go to `said`. Raises `CapacityUnavailable` when the worker's link was lost."""
        request = new_id()
        done: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()

        def hear(heard: Mapping[str, Any]) -> None:
            if heard["t"] == "image.log":
                if said is not None:
                    said.add(str(heard["text"]))
            elif not done.done():
                done.set_result(heard)

        end.builds[request] = hear
        try:
            end.link.send(control(kind, request=request, **members))
            async with asyncio.timeout(seconds):
                answer = await done
        except TimeoutError:
            raise ImageFailed(f"The worker did not answer within {seconds:g} s.") from None
        finally:
            del end.builds[request]
        if answer["t"] == "lost":
            raise CapacityUnavailable("The worker's link was lost while it worked.")
        return answer


def read_manifest(data: bytes) -> Manifest:
    """A stored manifest."""
    return from_wire(Manifest, jsontext.loads(data), "manifest")


def unpinned_in(manifest: Manifest) -> list[str]:
    """The references that have no digest, and name none themselves."""
    return sorted({image.reference for image in references(pinned(manifest, {})) if not image.digest})


async def known_digests(connection: Connection, environment_id: Any, unpinned: Sequence[str]) -> dict[str, str]:
    """The Environment's digests of those references that were resolved before."""
    rows = await deployments.image_digests(connection, environment_id=environment_id, references=list(unpinned))
    return {row["reference"]: row["digest"] for row in rows}


def _files_in(manifest: Manifest, image: ImageManifest) -> list[str]:
    """The files whose Agents run in the image."""
    templates = {template.id for template in manifest.templates if template.image == image}
    return sorted({agent.file for agent in manifest.agents if agent.template in templates})


def _distinct(images: Iterable[ImageManifest]) -> list[ImageManifest]:
    found: list[ImageManifest] = []
    for image in images:
        if image not in found:
            found.append(image)
    return found
