"""Publishing: blobs, Deployments, their image builds, promotion. SPEC [D2], [D3]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import structlog

from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.build_log import pieces
from helmr.control.service.builds import Builds, known_digests, read_manifest, unpinned_in
from helmr.control.service.comparing import compare_deployments
from helmr.control.service.core import Core, Effects, retry_of
from helmr.control.service.manifests import Manifests
from helmr.control.service.principals import Principal
from helmr.control.service.promotion import check_triggers, make_current
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import deployments, enrolments, identity, secrets
from helmr.objects.listing import File, read_listing
from helmr.objects.store import BlobStore, check_digest
from helmr.protocol import jsontext
from helmr.protocol.errors import (
    BlobCollected,
    BlobNotFound,
    Conflict,
    DefinitionInvalid,
    DeploymentNotFound,
    Forbidden,
    InvalidValue,
    NoCurrentDeployment,
    SecretNotFound,
)
from helmr.protocol.handing import read_bindings
from helmr.protocol.ids import DeploymentId, is_definition_id, is_id, new_id
from helmr.protocol.limits import BLOB_BYTES, MIB
from helmr.protocol.manifest import Manifest, listings, pinned, references
from helmr.protocol.shapes import Deployment, DeploymentDiff, ErrorInfo, Page
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import WireError, from_wire, to_wire

log = structlog.get_logger("helmr.deployments")


class Deployments:
    """`builds` makes of what is published here something that can run."""

    def __init__(self, core: Core, manifests: Manifests, blobs: BlobStore, builds: Builds) -> None:
        self._core = core
        self._manifests = manifests
        self._blobs = blobs
        self._builds = builds

    async def missing(self, principal: Principal, digests: Sequence[str]) -> list[str]:
        """Those that this Environment has not put, or whose files are lost; says nothing of other Environments.

        A database that was restored may list what was collected since.
        """
        principal.require("deployments.write")
        for digest in digests:
            check_digest(digest)
        async with self._core.database.connection() as connection:
            # In this order: what is found to be there is there to stay for a while.
            await deployments.ask_for_blobs(connection, environment_id=principal.environment_id, digests=list(digests))
            rows = await deployments.missing_blobs(connection, environment_id=principal.environment_id, digests=list(digests))
        missing = {row["digest"] for row in rows}
        listed = [digest for digest in digests if digest not in missing]
        there = await asyncio.gather(*map(self._blobs.exists, listed))
        missing.update(digest for digest, kept in zip(listed, there, strict=True) if not kept)
        return [digest for digest in digests if digest in missing]

    async def put_blob(self, principal: Principal, digest: str, stream: AsyncIterator[bytes]) -> bool:
        """Store a blob, checked against its digest; whether this Environment lacked it.

        Raises `BlobCollected` when an old one of that content was collected at this very moment.
        """
        principal.require("deployments.write")
        check_digest(digest)
        await self._blobs.put(stream, digest, limit=BLOB_BYTES)

        async def work(connection: Connection, effects: Effects) -> bool:
            await deployments.lock_blob(connection, digest=digest)
            try:
                size = await self._blobs.size(digest)
            except BlobNotFound:
                raise BlobCollected() from None
            had = await deployments.has_blob(connection, environment_id=principal.environment_id, digest=digest)
            await deployments.insert_blob(connection, environment_id=principal.environment_id, digest=digest, size=size)
            return not had

        return await self._core.write("put_blob", work)

    async def publish(
        self, principal: Principal, manifest: Mapping[str, Any], promote: bool, pull: bool, idempotency_key: str | None
    ) -> Reply:
        """A Deployment of this content: an existing one, or a new one that is built now. All its blobs must be put before.

        Tags are pinned to the digests that the Environment knows; with `pull` a worker is asked anew what they name [A7]. One that was
        never resolved is when the build begins.
        """
        principal.require("deployments.write")
        given = _check_manifest(manifest)
        asked = {"digest": jsontext.fingerprint(to_wire(given)).hex(), "promote": promote, **({"pull": True} if pull else {})}
        await self._check_blobs(principal, given)
        retry = retry_of(principal, "deployments.publish", "", idempotency_key, asked)
        unpinned = unpinned_in(given)
        fresh = await self._builds.resolve(principal.environment_id, unpinned) if pull and unpinned else {}

        async def work(connection: Connection, effects: Effects) -> tuple[Reply, str]:
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier, ""
            environment = await identity.lock_environment(connection, id=principal.environment_id)
            await _check_secrets(connection, principal, given)
            if fresh:
                await deployments.renew_digests(
                    connection, environment_id=principal.environment_id, references=list(fresh), digests=list(fresh.values())
                )
            data = to_wire(pinned(given, await known_digests(connection, principal.environment_id, unpinned)))
            digest = jsontext.fingerprint(data).hex()
            row = await deployments.deployment_by_digest(connection, environment_id=principal.environment_id, digest=digest)
            if row is None:
                deployment_id = new_id()
                await deployments.insert_deployment(
                    connection,
                    id=deployment_id,
                    environment_id=principal.environment_id,
                    digest=digest,
                    manifest=jsontext.canonical(data),
                    promote=promote,
                )
            else:
                deployment_id = str(row["id"])
                await deployments.need_deployment(connection, id=deployment_id)
                if row["collected_at"] is not None:
                    await deployments.revive_deployment(connection, id=deployment_id, promote=promote)
                elif promote and row["status"] == "building":
                    await deployments.want_promotion(connection, id=deployment_id)
                elif promote:
                    await make_current(connection, principal.environment_id, deployment_id, read_manifest(row["manifest"]))
            row = await deployments.deployment_row(connection, id=deployment_id, environment_id=principal.environment_id)
            current = environment["current_deployment_id"]
            if promote and row["status"] == "deployed":
                current = row["id"]
            receipt = jsontext.dumps(to_wire(self._shape(row, current)))
            return await retry.remember(connection, receipt, None, made=str(deployment_id)), deployment_id

        reply, _ = await self._core.write("publish", work)
        self._builds.build_pending()
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

    async def diff(self, principal: Principal, deployment_id: str, since: str) -> DeploymentDiff:
        """What the Deployment has otherwise than the one of `since`, in either order of age."""
        principal.require("deployments.read")
        async with self._core.database.connection() as connection:
            row, other = await _row(connection, principal, deployment_id), await _row(connection, principal, since)
        return await compare_deployments(self._blobs, other, row)

    async def promote(self, principal: Principal, deployment_id: str, idempotency_key: str | None) -> Reply:
        """Make a deployed Deployment the current one, old ones too unless they were collected. Sessions keep theirs."""
        principal.require("deployments.write")
        retry = retry_of(principal, "deployments.promote", deployment_id, idempotency_key, {})

        async def work(connection: Connection, effects: Effects) -> Reply:
            await _row(connection, principal, deployment_id)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            await identity.lock_environment(connection, id=principal.environment_id)
            row = await _row(connection, principal, deployment_id)
            if row["collected_at"] is not None:
                raise Conflict("The Deployment was unneeded for so long that its files are gone.", hint="Deploy the project again.")
            if row["status"] != "deployed":
                raise Conflict(f"The Deployment is {row['status']}; only a deployed one can be promoted.")
            await make_current(connection, principal.environment_id, deployment_id, read_manifest(row["manifest"]))
            return await retry.remember(connection, jsontext.dumps(to_wire(self._shape(row, row["id"]))), None)

        return await self._core.write("promote", work)

    async def log(self, principal: Principal, deployment_id: str) -> AsyncIterator[str]:
        """The build log's pieces until the build ended; the first comes at once, even empty."""
        principal.require("deployments.read")

        async def look() -> Any:
            async with self._core.database.connection() as connection:
                return await _row(connection, principal, deployment_id)

        async with aclosing(pieces(look)) as found:
            async for piece in found:
                yield piece

    # --- checks -------------------------------------------------------------------------------------------------------------

    async def _check_blobs(self, principal: Principal, manifest: Manifest) -> None:
        """Every listing, and every blob that one names, was put by this Environment. Raises `BlobNotFound`."""
        needed = set(listings(manifest))
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
        # One that is being built is pinned yet, and kept by nobody.
        building = row["status"] == "building"
        manifest = read_manifest(row["manifest"]) if building else self._manifests.of(str(row["id"]), row["manifest"])
        error = from_wire(ErrorInfo, jsontext.loads(row["error"])) if row["error"] is not None else UNSET
        return Deployment(
            id=DeploymentId(str(row["id"])),
            status=row["status"],
            current=current is not None and str(current) == str(row["id"]),
            digest=row["digest"],
            created_at=render.time_text(row["created_at"]),
            agents=tuple(agent.id for agent in manifest.agents),
            images={image.reference: image.digest for image in references(manifest) if image.digest},
            error=error,
            collected_at=UNSET if row["collected_at"] is None else render.time_text(row["collected_at"]),
        )


class Blobs:
    """What workers read."""

    def __init__(self, core: Core, blobs: BlobStore) -> None:
        self._core = core
        self._blobs = blobs

    async def path(self, worker: str, environment_id: str, digest: str) -> Path:
        """The file of a blob that the Environment has put. Raises `BlobNotFound`, and `Forbidden` to a worker that doesn't serve it."""
        check_digest(digest)
        async with self._core.database.connection() as connection:
            if (
                is_id(worker)
                and is_id(environment_id)
                and not await enrolments.serves(connection, id=worker, environment_id=environment_id)
            ):
                raise Forbidden("This worker does not serve that Environment.")
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


async def _check_secrets(connection: Connection, principal: Principal, manifest: Manifest) -> None:
    """Every Secret that a Template binds is there. Raises `SecretNotFound` naming the Agent's file and line."""
    names = {str(binding["name"]) for template in manifest.templates for binding in template.secrets}
    if not names:
        return
    missing = {row["name"] for row in await secrets.missing_names(connection, environment_id=principal.environment_id, names=sorted(names))}
    for template in manifest.templates:
        for binding in template.secrets:
            if (name := str(binding["name"])) in missing:
                user = next((agent for agent in manifest.agents if agent.template == template.id), None)
                where = {} if user is None else {"file": user.file, "line": user.line}
                place = "" if user is None else f"{user.file}:{user.line}: "
                raise SecretNotFound(
                    f"{place}The Template {template.id} binds the Secret {name}, which the Environment does not have.",
                    hint=f"helmr secret create {name}",
                    secret=name,
                    template=template.id,
                    **where,
                )


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
        check_triggers(agent)
    for template in checked.templates:
        try:
            read_bindings(template.secrets, f"Template {template.id}")
        except ValueError as error:
            raise DefinitionInvalid(str(error)) from None
        if template.cpu <= 0 or template.memory < 16 * MIB or template.pids < 1:
            raise DefinitionInvalid(f"Template {template.id} needs CPU, at least 16 MiB of memory, and a process.")
    check_digest(checked.bundle)
    return checked
