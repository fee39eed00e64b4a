"""The disk of the database and of the blobs fills up while Turns run. SPEC 11; [S11], [E1]; DESIGN I6.

A file system of its own in memory is filled to the last byte, and given its room back.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.scripted import house

from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig
from helmr.protocol.errors import DatabaseUnavailable, StorageFull
from helmr.testing.database_files import lay_database

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")]
MIB = 1 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk with little more room than a new database takes."""
    folder = Path(tempfile.mkdtemp(prefix="helmr-test-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=144m,mode=711", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        for size in (MIB, 4096):
            try:
                while ballast.write(bytes(size)):
                    pass
            except OSError:
                continue


async def test_what_was_accepted_stays_and_all_goes_on_when_there_is_room_again(disk: Path) -> None:
    """Each refusal is a retryable 503; the guest's word is kept until it can be stored."""
    await asyncio.to_thread(lay_database, disk / "postgres")
    server = EmbeddedPostgres(PostgresConfig(folder=disk / "postgres"))
    dsn = await server.start()
    chance = random.Random(1)
    try:
        async with house(dsn, disk) as h:
            session, process = await h.warm()
            running = (await h.enqueue(session))["id"]
            await process.began(running)
            fill(disk)
            accepted: list[str] = []
            with pytest.raises(DatabaseUnavailable) as refused:
                for number in range(1000):
                    accepted.append((await h.enqueue(session, chance.randbytes(60_000).hex(), key=f"k{number}"))["id"])
            assert refused.value.status == 503 and refused.value.retryable
            content = chance.randbytes(MIB)
            with pytest.raises(StorageFull) as full:
                await h.plane.deployments.put_blob(h.principal, hashlib.sha256(content).hexdigest(), _chunks(content))
            assert full.value.status == 503 and full.value.retryable
            process.output(running, chance.randbytes(60_000).hex())
            process.settle(running, result="done")
            (disk / "ballast").unlink()
            await server.start()  # nothing where it still runs
            async with asyncio.timeout(30):
                while (await _turn(h, session, running)) != "completed":
                    await asyncio.sleep(0.01)  # it is said again by polling alone, of which nobody tells
            last = (await h.enqueue(session, "after", key="after"))["id"]
            for turn in [*accepted, last]:
                await process.began(turn)
                process.settle(turn)
                assert (await h.turn(session, turn))["status"] == "completed"
            kinds = await h.kinds(session)
            assert kinds.count("turn.completed") == len(accepted) + 3 and kinds.count("session.process_started") == 1
            await h.plane.deployments.put_blob(h.principal, hashlib.sha256(content).hexdigest(), _chunks(content))
    finally:
        await server.stop()


async def _turn(h, session: str, turn: str) -> str:
    try:
        return (await h.turn(session, turn, 0))["status"]
    except DatabaseUnavailable:
        return "unknown"


async def _chunks(content: bytes):
    yield content
