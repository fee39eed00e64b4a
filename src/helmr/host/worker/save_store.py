"""Saves moved over HTTP, with the worker's credential: the control plane has the object store, or says where it is. SPEC [C5]."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import structlog

from helmr.host.worker.credential import Credential, authorization
from helmr.objects.store import CHUNK
from helmr.protocol import jsontext
from helmr.protocol.errors import ConnectionFailed, ContentInvalid, Forbidden, ObjectNotFound, SaveDamaged, StorageFull

ATTEMPTS: Final = 5
PAUSE_SECONDS: Final = 0.25
IDLE_SECONDS: Final = 60.0
"""A transfer in which nothing moves for so long is given up and tried again."""

_logger = structlog.get_logger("helmr.worker.saves")


class HttpSaveStore:
    """A `SaveStore` over `PUT` and `GET /v1/workers/{worker}/objects/{computer}/{name}`; `worker` gives the id of the welcome."""

    def __init__(self, session: aiohttp.ClientSession, url: str, credential: Credential, worker: Callable[[], str]) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._credential = credential
        self._worker = worker
        self._patience = aiohttp.ClientTimeout(total=None, sock_connect=IDLE_SECONDS, sock_read=IDLE_SECONDS)

    async def put(self, computer: str, name: str, file: Path) -> None:
        async def send() -> None:
            with await asyncio.to_thread(file.open, "rb") as reading:
                async with self._session.put(self._address(computer, name), data=reading, **self._options()) as response:
                    await _check(response, name)

        await self._persist(send, name)

    async def fetch(self, computer: str, name: str, target: Path) -> None:
        async def receive() -> None:
            async with self._session.get(self._address(computer, name), **self._options()) as response:
                await _check(response, name)
                with await asyncio.to_thread(target.open, "wb") as writing:
                    async for chunk in response.content.iter_chunked(CHUNK):
                        await asyncio.to_thread(writing.write, chunk)

        await self._persist(receive, name)

    async def _persist(self, transfer: Callable[[], Awaitable[None]], name: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await transfer()
                return
            except aiohttp.ClientError as error:
                _logger.warning("save.transfer_failed", name=name, attempt=attempt, error=str(error) or type(error).__name__)
                if attempt == ATTEMPTS:
                    raise ConnectionFailed(f"The object {name} could not be moved: {error or type(error).__name__}.") from error
                await asyncio.sleep(PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1.0))

    def _address(self, computer: str, name: str) -> str:
        return f"{self._url}/v1/workers/{self._worker()}/objects/{computer}/{name}"

    def _options(self) -> dict[str, Any]:
        return {"headers": authorization(self._credential), "timeout": self._patience}


async def _check(response: aiohttp.ClientResponse, name: str) -> None:
    if response.status == 404:
        raise ObjectNotFound(f"The object {name} is not in the store.")
    if response.status in (401, 403):
        raise Forbidden(f"The control plane refuses the object {name}: this worker is not to move it now.")
    if response.status == SaveDamaged.status and _code_of(await response.read()) == SaveDamaged.code:
        raise SaveDamaged("The store lacks packs that the save builds on, so the save before is damaged; the next one is made without it.")
    if response.status == StorageFull.status and _code_of(await response.read()) == StorageFull.code:
        raise StorageFull(f"The store has no room for the object {name}.")
    if response.status != 200:
        raise aiohttp.ClientError(f"the control plane answered {response.status}")


def _code_of(body: bytes) -> str | None:
    try:
        problem: Any = jsontext.loads(body)
    except ContentInvalid:
        return None
    return cast("dict[str, Any]", problem).get("code") if isinstance(problem, dict) else None
