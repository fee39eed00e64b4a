"""Publishing: blobs, Deployments, promotion, build logs. [D2], [D3]"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from helmr.control.api.answers import Answer, Blob, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import BlobQuery, DiffQuery, Digest, MissingBlobsQuestion, Nothing, PageQuery, PublishDeployment
from helmr.control.api.route import Route
from helmr.control.api.streams import END, EventStream, ending
from helmr.protocol import errors
from helmr.protocol.limits import BLOB_BYTES
from helmr.protocol.shapes import Deployment, DeploymentDiff, Page

MANIFEST_BYTES = 16 * 1024 * 1024

_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBlobs:
    """Those of the asked digests that this Environment lacks."""

    missing: tuple[Digest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlob:
    """`created` is false when this Environment had the blob already."""

    digest: Digest
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentPage(Page[Deployment]):
    items: tuple[Deployment, ...]


async def missing(call: Call[Nothing, MissingBlobsQuestion]) -> Answer:
    return encoded(MissingBlobs(missing=tuple(await call.services.deployments.missing(call.principal, call.body.digests))))


async def put_blob(call: Call[Nothing, Nothing]) -> Answer:
    digest = call.path["digest"]
    created = await call.services.deployments.put_blob(call.principal, digest, call.chunks(BLOB_BYTES))
    return encoded(StoredBlob(digest=digest, created=created))


async def get_blob(call: Call[BlobQuery, Nothing]) -> Answer:
    return Blob(await call.services.blobs.path(call.worker, call.query.environment, call.path["digest"]))


async def publish(call: Call[Nothing, PublishDeployment]) -> Answer:
    body = call.body
    return await call.services.deployments.publish(call.principal, body.manifest, body.promote, body.pull, call.idempotency_key)


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.deployments.list(call.principal, given(call.query.cursor), call.query.limit))


async def current(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.deployments.current(call.principal))


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.deployments.get(call.principal, call.path["deployment_id"]))


async def diff(call: Call[DiffQuery, Nothing]) -> Answer:
    return encoded(await call.services.deployments.diff(call.principal, call.path["deployment_id"], call.query.since))


async def promote(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.deployments.promote(call.principal, call.path["deployment_id"], call.idempotency_key)


async def log(call: Call[Nothing, Nothing]) -> Answer:
    return EventStream(_log_frames(call.services.deployments.log(call.principal, call.path["deployment_id"])))


async def _log_frames(pieces: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    """Log pieces are plain text and carry no id: they are no stored events, and a reader that comes again begins at the beginning."""
    async with ending(pieces):
        async for piece in pieces:
            lines = _LINE_END.split(piece) if piece else ()
            yield b"".join(b"data: %b\n" % line.encode("utf-8", errors="replace") for line in lines) + (b"\n" if lines else b"")
    yield END


DEPLOYMENT_ROUTES = (
    Route(
        method="POST",
        path="/v1/blobs/missing",
        name="missing_blobs",
        summary="Ask which blobs this Environment lacks",
        handler=missing,
        tag="Deployments",
        permission="deployments.write",
        body=MissingBlobsQuestion,
        takes="json",
        answer=MissingBlobs,
    ),
    Route(
        method="PUT",
        path="/v1/blobs/{digest}",
        name="put_blob",
        summary="Upload a blob; its bytes must have the digest that names it",
        handler=put_blob,
        tag="Deployments",
        permission="deployments.write",
        takes="bytes",
        body_bytes=BLOB_BYTES,
        answer=StoredBlob,
        errors=(errors.DigestMismatch, errors.StorageFull, errors.BlobCollected),
    ),
    Route(
        method="GET",
        path="/v1/blobs/{digest}",
        name="get_blob",
        summary="Fetch a blob for a Computer that the worker holds",
        handler=get_blob,
        tag="Workers",
        access="worker",
        query=BlobQuery,
        gives="bytes",
    ),
    Route(
        method="POST",
        path="/v1/deployments",
        name="publish_deployment",
        summary="Publish a Deployment from a manifest whose blobs are there",
        handler=publish,
        tag="Deployments",
        permission="deployments.write",
        body=PublishDeployment,
        takes="json",
        body_bytes=MANIFEST_BYTES,
        answer=Deployment,
        status=201,
        write=True,
        errors=(errors.BlobNotFound, errors.DefinitionInvalid, errors.ImageFailed, errors.CapacityUnavailable, errors.SecretNotFound),
    ),
    Route(
        method="GET",
        path="/v1/deployments",
        name="list_deployments",
        summary="List Deployments, the latest first",
        handler=list_,
        tag="Deployments",
        permission="deployments.read",
        query=PageQuery,
        answer=DeploymentPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/deployments/current",
        name="get_current_deployment",
        summary="Read the current Deployment",
        handler=current,
        tag="Deployments",
        permission="deployments.read",
        answer=Deployment,
        errors=(errors.NoCurrentDeployment,),
    ),
    Route(
        method="GET",
        path="/v1/deployments/{deployment_id}",
        name="get_deployment",
        summary="Read a Deployment",
        handler=get,
        tag="Deployments",
        permission="deployments.read",
        answer=Deployment,
    ),
    Route(
        method="GET",
        path="/v1/deployments/{deployment_id}/events",
        name="stream_deployment_log",
        summary="Follow a Deployment's build log until the build ends, as server-sent events",
        handler=log,
        tag="Deployments",
        permission="deployments.read",
        answer=str,
        gives="events",
    ),
    Route(
        method="GET",
        path="/v1/deployments/{deployment_id}/diff",
        name="diff_deployments",
        summary="Say what a Deployment has otherwise than another",
        handler=diff,
        tag="Deployments",
        permission="deployments.read",
        query=DiffQuery,
        answer=DeploymentDiff,
    ),
    Route(
        method="POST",
        path="/v1/deployments/{deployment_id}/promote",
        name="promote_deployment",
        summary="Make a Deployment the current one",
        handler=promote,
        tag="Deployments",
        permission="deployments.write",
        body=Nothing,
        takes="json",
        answer=Deployment,
        write=True,
        errors=(errors.Conflict,),
    ),
)
