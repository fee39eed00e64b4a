"""Deployments of an Environment, and what publishing one needs. SPEC [D2], [D3]."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from helmr.client.event_stream import SILENCE_SECONDS
from helmr.client.reading import read, read_page
from helmr.client.sse import SseParser
from helmr.client.transport import Transport, segment, translated
from helmr.protocol.errors import ConnectionFailed, UnreadableAnswer
from helmr.protocol.manifest import Manifest
from helmr.protocol.shapes import Deployment, DeploymentDiff, Page
from helmr.protocol.wire import to_wire

_BLOB_SECONDS = 600.0


class Deployments:
    """`client.deployments`."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, id: str) -> Deployment:
        """A Deployment now: `building`, `deployed` or `failed`. Raises `DeploymentNotFound`."""
        return read(Deployment, await self._transport.call("GET", f"/v1/deployments/{segment(id)}"))

    async def current(self) -> Deployment:
        """The one that new Sessions are pinned to. Raises `NoCurrentDeployment`."""
        return read(Deployment, await self._transport.call("GET", "/v1/deployments/current"))

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> Page[Deployment]:
        """A page of Deployments, newest first; `limit` 1-100, 50 when omitted."""
        return read_page(Deployment, await self._transport.call("GET", "/v1/deployments", query={"cursor": cursor, "limit": limit}))

    async def diff(self, since: str, id: str) -> DeploymentDiff:
        """What the Deployment `id` has otherwise than the one of `since`: Agents, policies, triggers, Templates, files [D3]."""
        path = f"/v1/deployments/{segment(id)}/diff"
        return read(DeploymentDiff, await self._transport.call("GET", path, query={"since": since}))

    async def promote(self, id: str, *, idempotency_key: str | None = None) -> Deployment:
        """Make it the current one; an older one too [D3]."""
        path = f"/v1/deployments/{segment(id)}/promote"
        return read(Deployment, await self._transport.write(path, {}, idempotency_key))

    async def log(self, id: str) -> AsyncIterator[str]:
        """The build log in pieces, from the beginning until the build has ended.

        Raises `ConnectionFailed` when the connection breaks before that: the log is read again from its beginning.
        """
        path = f"/v1/deployments/{segment(id)}/events"
        response = await self._transport.open_stream(path, headers={"Accept": "text/event-stream"}, silence=SILENCE_SECONDS)
        parser = SseParser()
        try:
            async for chunk in response.content.iter_any():
                for message in parser.feed(chunk):
                    if message.event == "end":
                        return
                    yield message.data
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise translated(error, self._transport.target.url) from error
        finally:
            response.close()
        raise ConnectionFailed("The build log broke off before its end.", hint="Read it again.")

    async def missing_blobs(self, digests: Sequence[str]) -> Sequence[str]:
        """Those that this Environment lacks."""
        answer = await self._transport.call("POST", "/v1/blobs/missing", json={"digests": list(digests)})
        data = answer.json()
        missing: Any = data.get("missing") if isinstance(data, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not isinstance(missing, list):
            raise UnreadableAnswer("The server's answer names no missing blobs.")
        return [str(digest) for digest in missing]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    async def put_blob(self, digest: str, content: bytes | Path) -> None:
        """Store a blob under its SHA-256; storing it again changes nothing."""
        await self._transport.call("PUT", f"/v1/blobs/{segment(digest)}", content=content, timeout=_BLOB_SECONDS)

    async def create_deployment(
        self, manifest: Manifest, promote: bool = True, *, pull: bool = False, idempotency_key: str | None = None
    ) -> Deployment:
        """Publish a manifest whose blobs are all there; promoted once deployed, if asked. Same manifest and digests: same Deployment.

        Image tags mean what they meant when the Environment first met them; `pull` asks anew [A7], and raises `ImageFailed` when nobody
        can tell, `CapacityUnavailable` without a worker.
        """
        body = {"manifest": to_wire(manifest), "promote": promote, **({"pull": True} if pull else {})}
        return read(Deployment, await self._transport.write("/v1/deployments", body, idempotency_key))
