"""A host on a small volume that fills up: a worker, a hostd and a real guest, against a scripted control plane. SPEC [C7]; UD-44."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.scenarios.host_side import Host, hosted, lock_holder

from helmr.host.hostd.client import HostdClient
from helmr.host.worker import Worker
from helmr.protocol.ids import new_id

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90), pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")]
MIB = 1 << 20
VOLUME_BYTES = 96 * MIB


@pytest.fixture
def volume() -> Iterator[Path]:
    """A loop-mounted file system with a disk's own limits."""
    with tempfile.TemporaryDirectory(prefix="helmr-volume-", dir="/var/tmp") as folder:
        image, place = Path(folder) / "image", Path(folder) / "volume"
        place.mkdir()
        with image.open("wb") as file:
            file.truncate(VOLUME_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
        place.chmod(0o711)
        try:
            yield place
        finally:
            subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
async def host(volume: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.delenv("HELMR_STORAGE_HIGH")
    async with hosted(Host(volume, "bubblewrap")) as found:
        yield found
        ending = os.pidfd_open(lock_holder(found.folder / "hostd"))
    async with asyncio.timeout(20):
        await readable(ending)  # its log lies on the volume
    os.close(ending)


async def readable(descriptor: int) -> None:
    ready = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)


def fill(place: Path, share: float) -> None:
    """Write ballast until the file system is used to that share."""
    found = os.statvfs(place)
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    with (place / "ballast").open("wb") as ballast:
        ballast.write(bytes(max(0, free - int(total * (1 - share)))))
        os.fsync(ballast.fileno())


def layer(state: Path, key: str, size: int) -> Path:
    """A layer that no Computer is made of, and that nobody has asked for since long ago."""
    place = state / "images" / "layers" / key
    (place / "files").mkdir(parents=True)
    (place / "files" / "big").write_bytes(bytes(size))
    os.utime(place, (1, 1))
    return place


def storage(worker: Worker | None):
    assert worker is not None
    return worker.storage


@pytest.mark.ud("UD-44")
async def test_a_full_volume_gives_up_what_nobody_needs_then_says_so_and_running_turns_go_on(host: Host, volume: Path) -> None:
    async with asyncio.timeout(60):
        await host.start_worker("local")
        await host.start_computer()
        await host.attach({})
        await host.start_session(7)
        op, _ = await host.run_turn(7, "one", 0)
        unneeded = layer(host.folder / "hostd", "0" * 64, 16 * MIB)
        cached = host.folder / "worker" / "cache" / "blobs" / new_id() / "ab" / ("c" * 62)
        cached.parent.mkdir(parents=True)
        cached.write_bytes(bytes(4 * MIB))
        os.utime(cached, (1, 1))

        fill(volume, 0.93)
        await storage(host.worker).look()
        assert not unneeded.exists() and not cached.exists(), "what nobody needs goes first"
        assert not storage(host.worker).pressed, "and that was enough"
        (volume / "ballast").unlink()

        fill(volume, 0.93)
        await storage(host.worker).look()
        told = await host.control.expect("renew", draining=None)
        while not told.get("storage", {}).get("pressed"):
            told = await host.control.expect("renew", draining=None)
        assert 0 < told["storage"]["free"] < 0.1 * told["storage"]["total"] < VOLUME_BYTES / 10
        op, said = await host.run_turn(7, "two", op)
        assert said.startswith("hello two from "), "what runs goes on"

        (volume / "ballast").unlink()
        await storage(host.worker).look()
        while told["storage"]["pressed"]:
            told = await host.control.expect("renew", draining=None)

        client = await HostdClient.connect(host.folder / "hostd" / "hostd.sock")
        computers = (await client.info())["computers"]
        await client.close()
        assert [entry["state"] for entry in computers] == ["running"], "nothing that lives was collected"
