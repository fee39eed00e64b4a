"""What every blob store must do; a new store joins by its name in `store`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helmr.objects import BlobStore, FolderStore
from helmr.protocol.errors import BlobNotFound, ContentLimitExceeded, DigestMismatch, InvalidValue

pytestmark = pytest.mark.anyio

WORDS = b"the bytes of a blob"
NAME = hashlib.sha256(WORDS).hexdigest()


@pytest.fixture(params=["folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return {"folder": lambda: FolderStore(tmp_path / "blobs")}[request.param]()


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def read(store: BlobStore, digest: str) -> bytes:
    return b"".join([chunk async for chunk in store.open(digest)])


async def names(store: BlobStore) -> set[str]:
    return {digest async for digest in store.iterate()}


async def test_what_was_put_is_found_by_its_digest(store: BlobStore) -> None:
    assert await store.put(WORDS) == NAME
    assert await store.exists(NAME)
    assert await store.size(NAME) == len(WORDS)
    assert await read(store, NAME) == WORDS
    assert (await store.path(NAME)).read_bytes() == WORDS
    assert await names(store) == {NAME}


async def test_a_stream_is_stored_as_its_joined_chunks(store: BlobStore) -> None:
    assert await store.put(stream(b"the bytes ", b"", b"of a blob"), NAME) == NAME
    assert await read(store, NAME) == WORDS


async def test_the_empty_blob_is_a_blob(store: BlobStore) -> None:
    digest = await store.put(b"")
    assert await store.exists(digest)
    assert await read(store, digest) == b""


async def test_a_blob_larger_than_a_chunk_comes_back_whole(store: BlobStore) -> None:
    data = bytes(range(256)) * 5000
    digest = await store.put(data)
    chunks = [chunk async for chunk in store.open(digest)]
    assert len(chunks) > 1
    assert b"".join(chunks) == data


async def test_bytes_that_belie_their_digest_are_refused_and_not_stored(store: BlobStore) -> None:
    with pytest.raises(DigestMismatch):
        await store.put(stream(WORDS, b"!"), NAME)
    assert not await store.exists(NAME)
    assert await names(store) == set()


async def test_a_blob_over_its_limit_is_refused_before_it_is_read_to_its_end(store: BlobStore) -> None:
    taken: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            taken.append(1)
            yield b"x" * 100

    with pytest.raises(ContentLimitExceeded):
        await store.put(endless(), limit=1000)
    assert len(taken) == 11
    assert await names(store) == set()
    assert await store.put(WORDS, limit=len(WORDS)) == NAME


async def test_a_stream_that_breaks_leaves_nothing(store: BlobStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        await store.put(broken())
    assert await names(store) == set()


async def test_a_cancelled_writer_leaves_nothing(store: BlobStore) -> None:
    waiting = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"half"
        waiting.set()
        await asyncio.Event().wait()

    async def put() -> None:
        await store.put(stuck())

    async with asyncio.TaskGroup() as group:
        task = group.create_task(put())
        await asyncio.wait_for(waiting.wait(), 5)
        task.cancel()
    assert task.cancelled()
    assert await names(store) == set()


async def test_an_unknown_blob_is_not_found(store: BlobStore) -> None:
    assert not await store.exists(NAME)
    for call in (store.path(NAME), store.size(NAME), read(store, NAME)):
        with pytest.raises(BlobNotFound):
            await call


@pytest.mark.parametrize("name", ["", "../" * 32, "A" * 64, "0" * 63, "0" * 65, "0" * 63 + "\n", "/etc/passwd"])
async def test_a_name_that_is_no_digest_is_refused(store: BlobStore, name: str) -> None:
    for call in (store.exists(name), store.path(name), store.delete(name), store.put(b"", name), read(store, name)):
        with pytest.raises(InvalidValue):
            await call


async def test_delete_says_whether_there_was_one(store: BlobStore) -> None:
    await store.put(WORDS)
    assert await store.delete(NAME)
    assert not await store.delete(NAME)
    assert not await store.exists(NAME)


async def test_concurrent_writers_of_one_blob_all_succeed(store: BlobStore) -> None:
    data = b"z" * 300_000
    found = await asyncio.gather(*(store.put(stream(data[:1000], data[1000:])) for _ in range(20)))
    assert len(set(found)) == 1
    assert await read(store, found[0]) == data
    assert await names(store) == {found[0]}


async def test_a_reader_finishes_though_the_blob_is_deleted(store: BlobStore) -> None:
    data = b"y" * 600_000
    digest = await store.put(data)
    chunks = store.open(digest)
    first = await anext(chunks)
    await store.delete(digest)
    assert first + b"".join([chunk async for chunk in chunks]) == data
