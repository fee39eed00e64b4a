"""Publishing: blobs, Deployments, their image builds, promotion. SPEC [D2], [D3]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.background import Background, Coalesced
from helmr.control.service.core import Core, Effects, retry_of
from helmr.control.service.links import Links, WorkerEnd
from helmr.control.service.manifests import Manifests
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import deployments, identity
from helmr.objects.listing import File, read_listing
from helmr.objects.store import BlobStore, check_digest
from helmr.protocol import jsontext
from helmr.protocol.errors import BlobNotFound, Conflict, DefinitionInvalid, DeploymentNotFound, InvalidValue, NoCurrentDeployment
from helmr.protocol.ids import DeploymentId, is_definition_id, is_id, new_id
from helmr.protocol.limits import MIB
from helmr.protocol.link import control
from helmr.protocol.manifest import ImageManifest, Manifest
from helmr.protocol.shapes import Deployment, ErrorInfo, Page
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import WireError, from_wire, to_wire

_BLOB_BYTES: Final = 1024 * MIB
_LOG_SECONDS: Final = 0.3

log = structlog.get_logger("helmr.deployments")


class Deployments:
    """`links` builds images on its workers; a Deployment stays `building` while no worker is there."""

    def __init__(self, core: Core, manifests: Manifests, blobs: BlobStore, links: Links) -> None:
        self._core = core
        self._manifests = manifests
        self._blobs = blobs
        self._links = links
        self.background = Background()
        self._building = Coalesced(self.background, "build")
        links.on_worker = self.build_pending

    async def stop(self) -> None:
        await self.background.stop()

    async def missing(self, principal: Principal, digests: Sequence[str]) -> list[str]:
        """Those that this Environment has not put; says nothing of other Environments."""
        principal.require("deployments.write")
        for digest in digests:
            check_digest(digest)
        async with self._core.database.connection() as connection:
            rows = await deployments.missing_blobs(connection, environment_id=principal.environment_id, digests=list(digests))
        return [row["digest"] for row in rows]

    async def put_blob(self, principal: Principal, digest: str, stream: AsyncIterator[bytes]) -> bool:
        """Store a blob, checked against its digest; whether this Environment lacked it."""
        principal.require("deployments.write")
        check_digest(digest)
        await self._blobs.put(stream, digest, limit=_BLOB_BYTES)
        size = await self._blobs.size(digest)
        async with self._core.database.connection() as connection:
            had = await deployments.has_blob(connection, environment_id=principal.environment_id, digest=digest)
            await deployments.insert_blob(connection, environment_id=principal.environment_id, digest=digest, size=size)
        return not had

    async def publish(self, principal: Principal, manifest: Mapping[str, Any], promote: bool, idempotency_key: str | None) -> Reply:
        """A Deployment of this content: an existing one, or a new one that is built now. All its blobs must be put before."""
        principal.require("deployments.write")
        checked = _check_manifest(manifest)
        data = jsontext.canonical(to_wire(checked))
        digest = jsontext.fingerprint(to_wire(checked)).hex()
        await self._check_blobs(principal, checked)
        retry = retry_of(principal, "deployments.publish", "", idempotency_key, {"digest": digest, "promote": promote})

        async def work(connection: Connection, effects: Effects) -> tuple[Reply, str]:
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier, ""
            environment = await identity.lock_environment(connection, id=principal.environment_id)
            row = await deployments.deployment_by_digest(connection, environment_id=principal.environment_id, digest=digest)
            if row is None:
                deployment_id = new_id()
                await deployments.insert_deployment(
                    connection, id=deployment_id, environment_id=principal.environment_id, digest=digest, manifest=data, promote=promote
                )
            else:
                deployment_id = str(row["id"])
                if promote and row["status"] == "building":
                    await deployments.want_promotion(connection, id=deployment_id)
                elif promote:
                    await deployments.make_current(connection, environment_id=principal.environment_id, deployment_id=deployment_id)
            row = await deployments.deployment_row(connection, id=deployment_id, environment_id=principal.environment_id)
            current = environment["current_deployment_id"]
            if promote and row["status"] == "deployed":
                current = row["id"]
            receipt = jsontext.dumps(to_wire(self._shape(row, current)))
            return await retry.remember(connection, receipt, None), deployment_id

        reply, _ = await self._core.write("publish", work)
        self.build_pending()
        return reply

    async def get(self, principal: Principal, deployment_id: str) -> Deployment:
        principal.require("deployments.read")
        async with self._core.database.connection() as connection:
            row = await _row(connection, principal, deployment_id)
            environment = await identity.environment_row(connection, id=principal.environment_id)
        return self._shape(row, environment["current_deployment_id"])

    async def current(self, principal: Principal) -> Deployment:
        principal.require("deployments.read")
        async with self._core.database.connection() as connection:
            row = await deployments.current_deployment(connection, environment_id=principal.environment_id)
        if row is None:
            raise NoCurrentDeployment()
        return self._shape(row, row["id"])

    async def list(self, principal: Principal, cursor: str | None, limit: int) -> Page[Deployment]:
        principal.require("deployments.read")
        before = decode_cursor(cursor) if cursor else None
        async with self._core.database.connection() as connection:
            rows = await deployments.list_deployments(connection, environment_id=principal.environment_id, before=before, count=limit + 1)
            environment = await identity.environment_row(connection, id=principal.environment_id)
        items = tuple(self._shape(row, environment["current_deployment_id"]) for row in rows[:limit])
        return Page(items=items, next_cursor=encode_cursor(items[-1].id) if len(rows) > limit else None)

    async def promote(self, principal: Principal, deployment_id: str, idempotency_key: str | None) -> Reply:
        """Make a deployed Deployment the current one, old ones too. Sessions keep theirs."""
        principal.require("deployments.write")
        retry = retry_of(principal, "deployments.promote", deployment_id, idempotency_key, {})

        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await _row(connection, principal, deployment_id)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            await identity.lock_environment(connection, id=principal.environment_id)
            if row["status"] != "deployed":
                raise Conflict(f"The Deployment is {row['status']}; only a deployed one can be promoted.")
            await deployments.make_current(connection, environment_id=principal.environment_id, deployment_id=deployment_id)
            return await retry.remember(connection, jsontext.dumps(to_wire(self._shape(row, row["id"]))), None)

        return await self._core.write("promote", work)

    async def log(self, principal: Principal, deployment_id: str) -> AsyncIterator[str]:
        """The build log's pieces until the build ended; the first comes at once, even empty."""
        principal.require("deployments.read")
        sent = 0
        while True:
            async with self._core.database.connection() as connection:
                row = await _row(connection, principal, deployment_id)
            text = row["log"]
            yield text[sent:]
            sent = len(text)
            if row["status"] != "building":
                return
            await asyncio.sleep(_LOG_SECONDS)

    # --- building -----------------------------------------------------------------------------------------------------------

    def build_pending(self) -> None:
        """Build what is `building`, if a worker is linked here. Called after a publication, at a worker's hello, and by upkeep."""
        self._building.ask("", self._build_all)

    async def _build_all(self, _: str) -> None:
        while True:
            end = self._links.any_end()
            if end is None:
                return
            async with self._core.database.connection() as connection:
                rows = await deployments.deployments_building(connection, count=1)
            if not rows:
                return
            await self._build(end, rows[0])

    async def _build(self, end: WorkerEnd, row: Any) -> None:
        manifest = self._manifests.of(str(row["id"]), row["manifest"])
        error: dict[str, Any] | None = None
        for template in manifest.templates:
            error = await self._build_image(end, row, template.image)
            if error is not None:
                break
        if error is not None and error.get("code") == "worker_gone":
            return

        async def work(connection: Connection, effects: Effects) -> None:
            await identity.lock_environment(connection, id=row["environment_id"])
            now = await deployments.lock_deployment(connection, id=row["id"])
            if now["status"] != "building":
                return
            status = "failed" if error is not None else "deployed"
            stored = render.error(error["code"], error.get("message")) if error is not None else None
            await deployments.finish_deployment(connection, id=row["id"], status=status, error=stored)
            if status == "deployed" and now["promote_when_ready"]:
                await deployments.make_current(connection, environment_id=row["environment_id"], deployment_id=row["id"])

        await self._core.write("finish_deployment", work)

    async def _build_image(self, end: WorkerEnd, row: Any, image: ImageManifest) -> dict[str, Any] | None:
        """Have a worker make the image's layers; its log is kept. None when it has them, else the error."""
        request = new_id()
        done: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()

        def hear(said: Mapping[str, Any]) -> None:
            if said["t"] == "image.log":
                self.background.start(self._log_line(row["id"], said["text"]), "build_log")
            elif not done.done():
                gone = {"code": "worker_gone"} if said["t"] == "lost" else None
                done.set_result(gone or said.get("error"))

        end.builds[request] = hear
        try:
            end.link.send(control("image.build", request=request, environment=str(row["environment_id"]), image=to_wire(image)))
            return await done
        finally:
            del end.builds[request]

    async def _log_line(self, deployment_id: Any, text: str) -> None:
        async with self._core.database.connection() as connection:
            await deployments.append_log(connection, id=deployment_id, text=text if text.endswith("\n") else text + "\n")

    # --- checks -------------------------------------------------------------------------------------------------------------

    async def _check_blobs(self, principal: Principal, manifest: Manifest) -> None:
        """Every listing, and every blob that one names, was put by this Environment. Raises `BlobNotFound`."""
        needed = {manifest.bundle, *manifest.blobs}
        for template in manifest.templates:
            needed |= {step.blob for step in template.image.steps if step.blob}
        await self._require(principal, needed)
        inner: set[str] = set()
        for digest in needed:
            path = await self._blobs.path(digest)
            listing = read_listing(await asyncio.to_thread(path.read_bytes))
            inner |= {entry.blob for entry in listing.values() if isinstance(entry, File)}
        await self._require(principal, inner)

    async def _require(self, principal: Principal, digests: set[str]) -> None:
        missing = await self.missing(principal, sorted(digests))
        if missing:
            raise BlobNotFound(f"{len(missing)} blobs of the Deployment were not put, {missing[0]} among them.")

    def _shape(self, row: Any, current: Any) -> Deployment:
        manifest = self._manifests.of(str(row["id"]), row["manifest"])
        error = from_wire(ErrorInfo, jsontext.loads(row["error"])) if row["error"] is not None else UNSET
        return Deployment(
            id=DeploymentId(str(row["id"])),
            status=row["status"],
            current=current is not None and str(current) == str(row["id"]),
            digest=row["digest"],
            created_at=render.time_text(row["created_at"]),
            agents=tuple(agent.id for agent in manifest.agents),
            error=error,
        )


class Blobs:
    """What workers read."""

    def __init__(self, core: Core, blobs: BlobStore) -> None:
        self._core = core
        self._blobs = blobs

    async def path(self, worker: str, environment_id: str, digest: str) -> Path:
        """The file of a blob that the Environment has put. Raises `BlobNotFound`."""
        check_digest(digest)
        async with self._core.database.connection() as connection:
            if not is_id(environment_id) or not await deployments.has_blob(connection, environment_id=environment_id, digest=digest):
                raise BlobNotFound()
        return await self._blobs.path(digest)


async def _row(connection: Connection, principal: Principal, deployment_id: str) -> Any:
    row = None
    if is_id(deployment_id):
        row = await deployments.deployment_row(connection, id=deployment_id, environment_id=principal.environment_id)
    if row is None:
        raise DeploymentNotFound()
    return row


def _check_manifest(manifest: Mapping[str, Any]) -> Manifest:
    """The manifest as a value. The project checked it with better messages; here it must only be sound."""
    try:
        checked = from_wire(Manifest, manifest, "manifest")
    except WireError as error:
        raise InvalidValue(str(error)) from None
    templates = {template.id for template in checked.templates}
    ids = [agent.id for agent in checked.agents]
    if len(set(ids)) != len(ids):
        raise DefinitionInvalid("Two Agents have the same id.")
    for agent in checked.agents:
        if not is_definition_id(agent.id):
            raise DefinitionInvalid(f"{agent.id!r} is no Agent id.")
        if agent.template not in templates:
            raise DefinitionInvalid(f"Agent {agent.id} names the Template {agent.template!r}, which the manifest lacks.")
    for template in checked.templates:
        if template.cpu <= 0 or template.memory < 16 * MIB or template.pids < 1:
            raise DefinitionInvalid(f"Template {template.id} needs CPU, at least 16 MiB of memory, and a process.")
    check_digest(checked.bundle)
    return checked
