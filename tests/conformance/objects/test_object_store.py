"""What every object store must do: a folder, and S3 by a server that speaks its protocol. A new store joins by its name in `store`."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmr.objects import FolderObjects, ObjectStore, open_objects
from helmr.objects.s3objects import PART_BYTES, S3Objects
from helmr.protocol.errors import InvalidValue, ObjectNotFound, ObjectStoreUnusable, StorageFull

pytestmark = pytest.mark.anyio

SERVER = """\
import logging
logging.disable()
from moto.server import ThreadedMotoServer
import boto3, sys
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1").create_bucket(Bucket="bucket")
print(port, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """The variables of a server with an empty bucket."""
    access = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **access}
    )
    assert server.stdin is not None
    assert server.stdout is not None
    port = int(server.stdout.readline())
    yield {**access, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    server.stdin.close()
    server.wait(30)
    server.stdout.close()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderObjects(tmp_path / "objects")
    return S3Objects("bucket", f"/some/{tmp_path.name}/", variables=request.getfixturevalue("s3"))


async def read(store: ObjectStore, name: str) -> bytes:
    with await store.get(name) as file:
        return file.read()


async def names(store: ObjectStore, prefix: str = "") -> set[str]:
    return {found.name async for found in store.list(prefix)}


async def test_what_was_put_is_found_by_its_name(store: ObjectStore, tmp_path: Path) -> None:
    await store.put("a/b/one", b"the bytes")
    assert await read(store, "a/b/one") == b"the bytes"
    assert await store.fetch("a/b/one", tmp_path / "here") == 9
    assert (tmp_path / "here").read_bytes() == b"the bytes"
    await store.put("empty", b"")
    assert await read(store, "empty") == b""


@pytest.mark.parametrize("answer", ["301 Moved Permanently\r\n", "307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/bucket/one\r\n"])
async def test_a_bucket_that_is_elsewhere_is_told_with_what_to_set(answer: str) -> None:
    """What is signed for one host is of no use at another, so no store follows."""

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {answer}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        access = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint}
        store = S3Objects("bucket", variables=access)
        with pytest.raises(OSError, match="set AWS_REGION or AWS_ENDPOINT_URL") as refused:
            await store.put("one", b"x")
    assert "Debug source" not in str(refused.value)


async def test_the_last_writer_wins(store: ObjectStore) -> None:
    await store.put("one", b"first")
    await store.put("one", b"second")
    assert await read(store, "one") == b"second"
    assert await names(store) == {"one"}


async def test_a_file_of_many_parts_comes_back_whole(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(PART_BYTES + 12345))
    await store.put("large", tmp_path / "file")
    assert await store.fetch("large", tmp_path / "back") == PART_BYTES + 12345
    assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()


async def test_a_list_has_the_names_below_a_prefix_with_their_sizes(store: ObjectStore) -> None:
    for name in ("saves/1/a", "saves/1/b", "saves/10/c", "other"):
        await store.put(name, name.encode())
    assert await names(store) == {"saves/1/a", "saves/1/b", "saves/10/c", "other"}
    found = {item.name: item async for item in store.list("saves/1/")}
    assert set(found) == {"saves/1/a", "saves/1/b"}
    assert found["saves/1/a"].size == 9
    assert found["saves/1/a"].stored_at.tzinfo is not None
    assert await names(store, "missing/") == set()
    with pytest.raises(InvalidValue):
        await names(store, "saves/1")


async def test_more_names_than_one_page_are_all_listed(store: ObjectStore) -> None:
    wanted = {f"many/{number:03}" for number in range(120)}
    for name in sorted(wanted):
        await store.put(name, b"x")
    assert await names(store, "many/") == wanted


async def test_what_was_deleted_is_gone_and_a_second_time_is_no_error(store: ObjectStore, tmp_path: Path) -> None:
    await store.put("a/b/one", b"x")
    await store.put("a/two", b"x")
    for _ in range(2):
        await store.delete("a/b/one")
    assert await names(store) == {"a/two"}
    with pytest.raises(ObjectNotFound):
        await store.get("a/b/one")
    with pytest.raises(ObjectNotFound):
        await store.fetch("a/b/one", tmp_path / "here")
    assert list(tmp_path.glob("*here*")) == []


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a b", "a\0", "ä", "a/" * 300 + "a"])
async def test_a_name_that_leads_elsewhere_is_refused(store: ObjectStore, name: str) -> None:
    with pytest.raises(InvalidValue):
        await store.put(name, b"x")
    with pytest.raises(InvalidValue):
        await store.get(name)
    with pytest.raises(InvalidValue):
        await store.delete(name)


async def test_a_file_that_can_not_be_read_to_its_end_is_not_there_at_all(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        await store.put("one", tmp_path / "missing")
    assert await names(store) == set()


WRITER = """\
import asyncio, os, signal, sys
from pathlib import Path
from helmr.objects import FolderObjects
asyncio.run(FolderObjects(Path(sys.argv[1])).put("whole", b"x"))
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)  # the bytes are written, the name isn't given
asyncio.run(FolderObjects(Path(sys.argv[1])).put("half", b"y" * 100_000))
"""


async def test_a_killed_writer_leaves_no_half_object_in_a_folder(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path / "objects")], check=False)
    assert ended.returncode == -signal.SIGKILL
    store = FolderObjects(tmp_path / "objects")
    assert await names(store) == {"whole"}
    with pytest.raises(ObjectNotFound):
        await store.get("half")
    assert [path.name for path in (tmp_path / "objects").iterdir()] == ["whole"], "what it left takes no room after a look"


async def test_what_a_living_writer_has_written_so_far_is_neither_shown_nor_taken_away(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path / "objects")
    os.mkfifo(tmp_path / "slow")
    writing = asyncio.ensure_future(store.put("some/object", tmp_path / "slow"))
    source = await asyncio.to_thread((tmp_path / "slow").open, "wb")  # once the writer reads, its draft is there
    with source:
        assert await names(store) == set()
        source.write(b"whole")
    await writing
    assert await read(store, "some/object") == b"whole"


async def test_a_full_disk_is_told_by_name_and_keeps_no_half_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[C7]"""
    store = FolderObjects(tmp_path / "objects")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull):
            await store.put("folder/name", b"x" * 1000)
    assert [path for path in (tmp_path / "objects").rglob("*") if path.is_file()] == []
    await store.put("folder/name", b"x")
    assert await names(store) == {"folder/name"}


async def test_an_upload_that_was_broken_off_shows_nothing_in_s3(s3: dict[str, str], tmp_path: Path) -> None:
    """The sender fails after some of its parts went up: no object has them."""
    import obstore
    from obstore.store import S3Store

    store = S3Objects("bucket", tmp_path.name, variables=s3)

    class Broken(Exception):
        pass

    def parts() -> Iterator[bytes]:
        yield b"x" * PART_BYTES
        raise Broken

    raw = S3Store(
        "bucket",
        prefix=tmp_path.name,
        client_options={"allow_http": True},
        **{name.lower(): value for name, value in s3.items()},  # type: ignore[arg-type]
    )
    with pytest.raises(Broken):
        await obstore.put_async(raw, "half", parts(), chunk_size=PART_BYTES // 2)
    assert await names(store) == set()


async def test_a_bucket_that_is_not_there_is_an_error_of_the_store(s3: dict[str, str]) -> None:
    store = S3Objects("missing", variables=s3)
    with pytest.raises(OSError, match="one"):
        await store.put("one", b"x")


async def test_a_store_is_named_by_its_address(s3: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    for address in (f"file://{tmp_path}/with%20space", f"s3://bucket/{tmp_path.name}"):
        await open_objects(address).put("one", b"x")
        assert await names(open_objects(address)) == {"one"}
    assert (tmp_path / "with space/one").read_bytes() == b"x"
    for address in ("", "/tmp", "file://host/tmp", "s3://", "ftp://x/y"):
        with pytest.raises(ObjectStoreUnusable):
            open_objects(address)
