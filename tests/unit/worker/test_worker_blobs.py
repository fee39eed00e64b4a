"""Fetching blobs of the control plane, and laying bundles out [A7], [D2]."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from helmr.host.worker.blobs import HttpBlobs
from helmr.host.worker.bundles import Bundles
from helmr.objects import File, write_listing
from helmr.protocol.errors import BlobNotFound, ConnectionFailed, InvalidRequest, InvalidValue
from helmr.protocol.ids import new_id

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio


class Shelf:
    """A control plane that serves blobs, and fails as a test wants."""

    def __init__(self) -> None:
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.asked: list[str] = []
        self.was_asked = asyncio.Event()
        self.faults: list[str] = []
        self.busy = 0
        self.most_busy = 0

    def put(self, environment: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[environment, digest] = data
        return digest

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer secret"
        digest, environment = request.match_info["digest"], request.query["environment"]
        self.asked.append(digest)
        self.was_asked.set()
        data = self.blobs.get((environment, digest))
        if data is None:
            return web.Response(status=404)
        fault = self.faults.pop() if self.faults else ""
        if fault == "unavailable":
            return web.Response(status=503)
        if fault == "other bytes":
            return web.Response(body=b"!" + data)
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        await asyncio.sleep(0)
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        self.busy -= 1
        if fault == "cut short":
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(data[len(data) // 2 :])
        return response


@pytest.fixture
async def shelf() -> AsyncIterator[tuple[Shelf, str]]:
    found = Shelf()
    app = web.Application()
    app.router.add_get("/v1/blobs/{digest}", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield found, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def blobs(shelf: tuple[Shelf, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpBlobs]:
    monkeypatch.setattr("helmr.host.worker.blobs.PAUSE_SECONDS", 0.001)
    async with aiohttp.ClientSession() as session:
        yield HttpBlobs(session, shelf[1], "secret", tmp_path / "blobs")


async def test_a_blob_is_fetched_once_and_then_kept(shelf: tuple[Shelf, str], blobs: HttpBlobs, bounded: Bounded) -> None:
    environment = new_id()
    digest = shelf[0].put(environment, b"x" * 700_000)
    async with bounded():
        path = await blobs.fetch(environment, digest)
        assert path.read_bytes() == b"x" * 700_000
        assert await blobs.fetch(environment, digest) == path
    assert shelf[0].asked == [digest]


@pytest.mark.parametrize("fault", ["unavailable", "other bytes", "cut short"])
async def test_a_transfer_that_fails_is_tried_again_and_no_half_blob_is_kept(
    shelf: tuple[Shelf, str], blobs: HttpBlobs, fault: str, bounded: Bounded, tmp_path: Path
) -> None:
    environment = new_id()
    digest = shelf[0].put(environment, b"whole" * 1000)
    shelf[0].faults = [fault, fault]
    async with bounded():
        assert (await blobs.fetch(environment, digest)).read_bytes() == b"whole" * 1000
    assert len(shelf[0].asked) == 3
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == [await blobs.fetch(environment, digest)]


async def test_a_transfer_that_keeps_failing_is_given_up(shelf: tuple[Shelf, str], blobs: HttpBlobs, bounded: Bounded) -> None:
    environment = new_id()
    digest = shelf[0].put(environment, b"whole")
    shelf[0].faults = ["cut short"] * 10
    async with bounded():
        with pytest.raises(ConnectionFailed):
            await blobs.fetch(environment, digest)


async def test_another_environments_blob_is_as_unknown_as_any(shelf: tuple[Shelf, str], blobs: HttpBlobs, bounded: Bounded) -> None:
    """[O1]: what one Environment cached here is no answer for another."""
    mine, other = new_id(), new_id()
    digest = shelf[0].put(mine, b"private")
    async with bounded():
        await blobs.fetch(mine, digest)
        with pytest.raises(BlobNotFound):
            await blobs.fetch(other, digest)
        with pytest.raises(InvalidValue):
            await blobs.fetch(mine, "../../etc/passwd")
        with pytest.raises(InvalidRequest):
            await blobs.fetch("..", digest)


async def test_concurrent_callers_share_one_laying_out_and_the_files_come_beside_each_other(
    shelf: tuple[Shelf, str], blobs: HttpBlobs, tmp_path: Path, bounded: Bounded
) -> None:
    environment = new_id()
    files = {f"src/{number}.py": b"n = %d\n" % number for number in range(40)}
    listing = {path: File(blob=shelf[0].put(environment, data), size=len(data)) for path, data in files.items()}
    digest = shelf[0].put(environment, write_listing(listing))
    bundles = Bundles(tmp_path / "bundles", blobs)
    async with bounded():
        folders = await asyncio.gather(*(bundles.folder(environment, digest) for _ in range(8)))
    assert len(set(folders)) == 1
    assert {str(path.relative_to(folders[0])): path.read_bytes() for path in folders[0].rglob("*.py")} == files
    assert len(shelf[0].asked) == 41
    assert shelf[0].most_busy > 1
    async with bounded():
        assert await Bundles(tmp_path / "bundles", blobs).folder(environment, digest) == folders[0]
    assert len(shelf[0].asked) == 41


async def test_a_caller_that_is_cancelled_leaves_the_making_to_another(
    shelf: tuple[Shelf, str], blobs: HttpBlobs, tmp_path: Path, bounded: Bounded
) -> None:
    environment = new_id()
    digest = shelf[0].put(environment, write_listing({"a": File(blob=shelf[0].put(environment, b"a"), size=1)}))
    bundles = Bundles(tmp_path / "bundles", blobs)
    async with bounded():
        first = asyncio.ensure_future(bundles.folder(environment, digest))
        second = asyncio.ensure_future(bundles.folder(environment, digest))
        await shelf[0].was_asked.wait()
        first.cancel()
        assert ((await second) / "a").read_bytes() == b"a"
        assert first.cancelled()
