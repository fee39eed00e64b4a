"""Streams and waits hold no connection to the database. [E4], UD-85."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import aiohttp
import asyncpg
import pytest
from tests.scenarios.watching import heard, probe, words

from helmr.client import HelmrClient
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(90)
POOL = 8
"""HELMR_POOL_SIZE by default."""


@pytest.mark.ud("UD-85")
async def test_three_hundred_streams_and_a_hundred_waits_use_the_pool_and_one_listener(
    installation: Installation, client: HelmrClient
) -> None:
    """All of them are served: each stream brings the Turn's end, each wait its outcome."""
    session, turn = await probe(client, "until_told:")
    await heard(session, "turn.output")
    after = (await session.events.list()).next_after
    base = f"/v1/sessions/{session.id}"
    observer = await asyncpg.connect(installation.dsn)
    headers = {"Authorization": f"Bearer {installation.key}"}

    async def connections() -> int:
        return await observer.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )

    async def follow(reply: aiohttp.ClientResponse) -> None:
        async for line in reply.content:
            if line.startswith(b"data:") and json.loads(line[5:]).get("kind") == "turn.completed":
                return
        raise AssertionError("the stream ended early")

    async def wait(http: aiohttp.ClientSession) -> str:
        async with http.get(f"{base}/turns/{turn.id}?wait=30s") as reply:
            return (await reply.json())["status"]

    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(installation.url, headers=headers, connector=connector) as http, AsyncExitStack() as opened:
            streams = [await opened.enter_async_context(http.get(f"{base}/events/stream?after={after}")) for _ in range(300)]
            assert {reply.status for reply in streams} == {200}
            waits = [asyncio.ensure_future(wait(http)) for _ in range(100)]
            async with http.get(base) as reply:  # behind the waits in the server's queue: it has taken them in
                assert reply.status == 200
            assert await connections() <= POOL + 2
            async with asyncio.timeout(30):
                await turn.send(words("go"))
                await asyncio.gather(*[follow(reply) for reply in streams])
                assert set(await asyncio.gather(*waits)) == {"completed"}
            assert await connections() <= POOL + 2
    finally:
        await observer.close()
        await session.cancel()
