"""Blobs of the control plane, fetched over HTTP with the worker's credential and kept in the cache."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from helmr.host.worker import caches
from helmr.host.worker.credential import Credential, authorization
from helmr.objects import FolderStore
from helmr.objects.store import CHUNK
from helmr.protocol.errors import BlobNotFound, ConnectionFailed, DigestMismatch
from helmr.protocol.ids import parse_id

_logger = structlog.get_logger("helmr.worker.blobs")

ATTEMPTS: Final = 4
PAUSE_SECONDS: Final = 0.25
IDLE_SECONDS: Final = 30.0
"""A transfer from which nothing comes for so long is given up and tried again."""


class HttpBlobs:
    """A `BlobSource` over `GET /v1/blobs/DIGEST`.

    Each Environment has a cache of its own: who names another one's digest gets an answer only if its own Environment has the blob too.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, credential: Credential, cache: Path) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._credential = credential
        self._cache = cache
        self._stores: dict[str, FolderStore] = {}

    async def fetch(self, environment: str, digest: str) -> Path:
        store = await self._store(environment)
        for attempt in range(1, ATTEMPTS + 1):
            if await store.exists(digest):
                path = await store.path(digest)
                await asyncio.to_thread(caches.used, path)
                return path
            try:
                await store.put(self._download(environment, digest), digest)
            except (aiohttp.ClientError, OSError, DigestMismatch) as error:
                _logger.warning("blob.fetch_failed", digest=digest, attempt=attempt, error=str(error) or type(error).__name__)
                if attempt == ATTEMPTS:
                    raise ConnectionFailed(f"The blob {digest} could not be fetched: {error or type(error).__name__}.") from error
                await asyncio.sleep(PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
        return await store.path(digest)

    async def _store(self, environment: str) -> FolderStore:
        store = self._stores.get(environment)
        if store is None:
            store = self._stores[environment] = await asyncio.to_thread(FolderStore, self._cache / parse_id(environment, "environment"))
        return store

    async def _download(self, environment: str, digest: str) -> AsyncIterator[bytes]:
        async with self._session.get(
            f"{self._url}/v1/blobs/{digest}",
            params={"environment": environment},
            headers=authorization(self._credential),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=IDLE_SECONDS, sock_read=IDLE_SECONDS),
        ) as response:
            if response.status == 404:
                raise BlobNotFound(digest=digest)
            if response.status != 200:
                raise aiohttp.ClientError(f"the control plane answered {response.status}")
            async for chunk in response.content.iter_chunked(CHUNK):
                yield chunk
