"""What only the folder store promises: crashes leave no part of a blob."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

import pytest

from helmr.objects import FolderStore

pytestmark = pytest.mark.anyio

WRITER = """
import asyncio, sys
from pathlib import Path
from helmr.objects import FolderStore

async def half():
    yield b"x" * 1000000
    print("half", flush=True)
    await asyncio.Event().wait()

asyncio.run(FolderStore(Path(sys.argv[1])).put(half()))
"""


async def test_a_killed_writer_leaves_no_blob_and_its_rest_is_swept(tmp_path: Path) -> None:
    FolderStore(tmp_path)
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(tmp_path), stdout=asyncio.subprocess.PIPE)
    assert writer.stdout is not None
    assert await asyncio.wait_for(writer.stdout.readline(), 10) == b"half\n"
    assert FolderStore(tmp_path).sweep() == 0, "a living writer's file stays"
    assert len(list((tmp_path / "incoming").iterdir())) == 1
    writer.kill()
    await asyncio.wait_for(writer.wait(), 5)
    store = FolderStore(tmp_path)
    assert list((tmp_path / "incoming").iterdir()) == []
    assert [digest async for digest in store.iterate()] == []


async def test_blobs_are_sharded_and_readable_by_all(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    digest = await store.put(b"hello")
    path = tmp_path / digest[:2] / digest[2:]
    assert path == await store.path(digest)
    assert path.stat().st_mode & 0o777 == 0o644
    assert list((tmp_path / "incoming").iterdir()) == []


async def test_a_second_put_keeps_the_file_so_that_links_to_it_are_shared(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    path = await store.path(await store.put(b"hello"))
    before = path.stat().st_ino
    await store.put(b"hello")
    assert path.stat().st_ino == before


async def test_writers_of_two_processes_share_a_root(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom helmr.objects import FolderStore\n"
        "async def main():\n    s = FolderStore(Path(sys.argv[1]))\n    await asyncio.gather(*(s.put(b'%d' % i) for i in range(100)))\n"
        "asyncio.run(main())"
    )
    writers = [await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path)) for _ in range(3)]
    assert [await asyncio.wait_for(writer.wait(), 30) for writer in writers] == [0, 0, 0]
    found = {digest async for digest in FolderStore(tmp_path).iterate()}
    assert found == {hashlib.sha256(b"%d" % number).hexdigest() for number in range(100)}
