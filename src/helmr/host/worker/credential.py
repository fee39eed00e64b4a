"""A worker's own credential, which it renews by itself while it works. SPEC 13.

offer told -> stored heard -> kept in the folder -> used: only then the old one ends. A link that is open stays open, and no Turn is cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from helmr.host.worker.enrolment import Enrolment, hash_of, new_credential, store
from helmr.host.worker.failure import logger

ROTATE_SECONDS: Final = 30 * 86_400.0
ANSWER_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 60.0
"""How long a renewal that came to nothing is left alone."""
PROOFS: Final = 5

Credential = str | Callable[[], str]
"""What is presented: always the same, or what is the present one."""


class Tell(Protocol):
    def __call__(self, kind: str, **members: Any) -> None: ...


def authorization(credential: Credential) -> dict[str, str]:
    """The header of a request that is made now."""
    return {"Authorization": f"Bearer {credential if isinstance(credential, str) else credential()}"}


class OwnCredential:
    """Call it for the credential to present. `run` renews it when it is old, or the control plane wants that."""

    def __init__(self, state: Path, enrolment: Enrolment, session: aiohttp.ClientSession, *, every: float = ROTATE_SECONDS) -> None:
        self._state = state
        self._enrolment = enrolment
        self._session = session
        self._every = every
        self._asked = asyncio.Event()
        self._stored = asyncio.Event()
        if enrolment.offered is not None:
            self._asked.set()  # it was begun before a restart

    def __call__(self) -> str:
        return self._enrolment.credential

    def handle(self, kind: str, message: Mapping[str, Any]) -> None:
        """What the control plane says of credentials."""
        if kind == "credential.rotate":
            self._asked.set()
        elif self._enrolment.offered is not None and message.get("hash") == hash_of(self._enrolment.offered):
            self._stored.set()

    async def run(self, tell: Tell) -> None:
        """Renew it again and again; a renewal that comes to nothing is tried again."""
        while True:
            await self._until_due()
            self._asked.clear()
            if not await self._renew(tell):
                await asyncio.sleep(AGAIN_SECONDS)
                self._asked.set()

    async def _until_due(self) -> None:
        left = self._enrolment.since + self._every - time.time()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await self._asked.wait()
        except TimeoutError:
            logger.info("credential.due", days=round(self._every / 86_400, 2))

    async def _renew(self, tell: Tell) -> bool:
        if self._enrolment.offered is None:
            await self._keep(replace(self._enrolment, offered=new_credential()))
        fresh = self._enrolment.offered
        assert fresh is not None
        self._stored.clear()
        tell("credential.offer", hash=hash_of(fresh))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._stored.wait()
        except TimeoutError:
            return False
        await self._keep(replace(self._enrolment, credential=fresh, offered=None, since=time.time()))
        logger.info("credential.renewed")
        await self._prove()
        return True

    async def _prove(self) -> None:
        """Use it once, so that the old one ends now; if that can't be, the next use does it."""
        for attempt in range(PROOFS):
            try:
                timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
                url = f"{self._enrolment.url.rstrip('/')}/v1/workers/self"
                async with self._session.get(url, headers=authorization(self), timeout=timeout) as response:
                    if response.status < 500:
                        logger.info("credential.used", status=response.status)
                        return
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                logger.info("credential.not_used_yet", error=str(error) or type(error).__name__)
            await asyncio.sleep(2.0**attempt)

    async def _keep(self, enrolment: Enrolment) -> None:
        await asyncio.to_thread(store, self._state, enrolment)
        self._enrolment = enrolment
