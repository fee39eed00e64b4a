"""A worker on a disk that fills up: what nobody needs goes first, then the control plane hears of it [C7]."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helmr.host.worker import caches
from helmr.host.worker.ports import HostdRefused
from helmr.protocol.storage import WaterMarks

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Rig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio


def entry(path: Path, *, old: bool) -> Path:
    """A file, or a folder with a file where the name ends so."""
    if path.name.endswith("folder"):
        path.mkdir(parents=True)
        (path / "file").write_bytes(b"x")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    if old:
        os.utime(path, (1, 1))
    return path


async def test_what_nobody_asked_for_of_late_goes_and_the_rest_stays(tmp_path: Path) -> None:
    old = [entry(tmp_path / place, old=True) for place in ("bundles/e/folder", "image-blobs/e/abc", "blobs/e/ab/cdef")]
    young = [entry(tmp_path / place, old=False) for place in ("bundles/e/2folder", "image-blobs/e/abd", "blobs/e/ab/cdee")]
    asked = entry(tmp_path / "blobs/e/ab/cded", old=True)
    caches.used(asked)
    unfinished = entry(tmp_path / "bundles/e/.folder", old=False)
    os.utime(unfinished, (caches.time.time() - 3600,) * 2)
    incoming = entry(tmp_path / "blobs/e/incoming/abc", old=True)
    assert caches.collect(tmp_path) == 3
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in (*young, asked, unfinished, incoming))


async def test_a_full_disk_is_collected_first_and_told_only_if_it_stays_full(local_rig: Rig, bounded: Bounded) -> None:
    """What room comes of collecting is enough: nobody is held. What does not go is told, until there is room again."""
    local_rig.config = replace(local_rig.config, storage=WaterMarks(high=0.9, low=0.85))
    async with bounded():
        await local_rig.start_worker()
        storage = local_rig.worker.storage
        await storage.look()  # after this its own first one is over, and the next is far away
        old = entry(local_rig.config.cache / "bundles/e/folder", old=True)
        told = await local_rig.control.expect("renew")
        local_rig.hostd.disks = [0.95, 0.7]
        await storage.look()
        assert len(local_rig.hostd.called("image.collect")) == 1 and not old.exists() and not storage.pressed
        local_rig.hostd.disks = [0.95]
        await storage.look()
        assert len(local_rig.hostd.called("image.collect")) == 2
        told = await local_rig.control.expect("renew", storage={"total": 100, "free": 5, "pressed": True})
        await storage.look()
        assert len(local_rig.hostd.called("image.collect")) == 2, "not again at once"
        local_rig.hostd.disks = [0.88]
        await storage.look()
        assert storage.pressed, "not before the low mark"
        local_rig.hostd.disks = [0.8]
        await storage.look()
        told = await local_rig.control.expect("renew", storage={"total": 100, "free": 20, "pressed": False})
        assert "draining" not in told


async def test_a_hostd_that_measures_nothing_leaves_the_workers_own_disk(local_rig: Rig, bounded: Bounded) -> None:
    """[D5]"""
    async with bounded():
        local_rig.hostd.refuse["storage"] = HostdRefused("unknown_method", "hostd has no method 'storage'.")
        await local_rig.start_worker()
        await local_rig.worker.storage.look()
        told = local_rig.worker.storage.told()
        assert told is not None and told["total"] > 0


async def test_a_hostd_that_is_away_ends_nothing(local_rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        local_rig.hostd.refuse["storage"] = HostdRefused("internal", "No.")
        await local_rig.start_worker()
        looking = asyncio.ensure_future(local_rig.worker.storage.run())
        await local_rig.hostd.until(lambda: len(local_rig.hostd.called("storage")) >= 2)
        assert not looking.done() and local_rig.worker.storage.told() is None
        looking.cancel()
