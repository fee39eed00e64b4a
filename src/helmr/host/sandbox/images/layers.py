"""The folder of layers: `ROOT/layers/KEY/files`, each built aside and renamed, so that a layer is whole or not there [A7].

Layers are never written again. They go by `remove`, or by `set_aside` when space is needed [C7].
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from helmr.host.sandbox.removal import remove_tree

Log = Callable[[str], None]
Build = Callable[[Path], Awaitable[None]]

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one step changed: a folder with the ids that its sandbox saw, to be used as an overlay's lower layer and never written."""

    key: str
    path: Path


class Layers:
    """Layers under `root`. One hostd owns it; what a killed one left half built or half removed goes when the next one begins."""

    def __init__(self, root: Path) -> None:
        self._layers = root / "layers"
        self._building = root / "building"
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._wanted: Counter[str] = Counter()
        for folder in (root, self._layers, self._building):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711)
        self._sweep()

    def layer(self, key: str) -> Layer | None:
        """The layer `key`, if it is here."""
        path = self._layers / key / "files"
        return Layer(key=key, path=path) if path.is_dir() else None

    def keys(self) -> list[str]:
        """The keys of all layers that are here."""
        return sorted(os.listdir(self._layers))

    @contextmanager
    def holding(self) -> Generator[Hold, None, None]:
        """What is made by this is not collected while the context lasts, however long that is."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            self._wanted.subtract(hold.keys)
            self._wanted = +self._wanted

    async def remove(self, key: str) -> bool:
        """Take a layer away that nothing uses; whether it was there. A crash meanwhile leaves no part of it among the layers."""
        aside = self._set_aside(key)
        if aside is None:
            return False
        await asyncio.shield(asyncio.to_thread(remove_tree, aside))
        return True

    def set_aside(self, keep: Collection[str], *, idle_seconds: float) -> dict[str, Path]:
        """Take away the layers that are not in `keep`, that no build stands on, and that none asked for within `idle_seconds` [C7].

        At once, so that whoever looks for one finds it whole or not at all. What was taken waits for `free`; a crash frees it too.
        """
        kept, found = frozenset(keep), dict[str, Path]()
        for key in self.keys():
            if key in kept or self._wanted[key] or time.time() - (self._layers / key).stat().st_mtime < idle_seconds:
                continue
            if (aside := self._set_aside(key)) is not None:
                found[key] = aside
        return found

    async def free(self, aside: Mapping[str, Path]) -> int:
        """Remove what was set aside; the bytes of disk that it had."""
        freed = 0
        for folder in aside.values():
            freed += await asyncio.to_thread(_disk_bytes, folder)
            await asyncio.shield(asyncio.to_thread(remove_tree, folder))
        return freed

    async def made(self, key: str, title: str, build: Build, log: Log, hold: Hold) -> Layer:
        """The layer `key`, built by `build` into the empty folder it gets unless it exists. Concurrent calls build it once."""
        hold.keys.append(key)
        self._wanted[key] += 1
        if found := self._used(key):
            return found
        lock = self._locks.setdefault(key, asyncio.Lock())
        if lock.locked():
            log(f"{title}: waiting for the same step of another build")
        async with lock:
            if found := self._used(key):
                return found
            log(title)
            with self._scratch(key) as scratch:
                files = scratch / "files"
                files.mkdir(mode=0o755)
                files.chmod(0o755)
                await build(files)
                await asyncio.to_thread(_commit, scratch, self._layers / key, title)
        return Layer(key=key, path=self._layers / key / "files")

    def _set_aside(self, key: str) -> Path | None:
        aside = self._building / f"{key}.{secrets.token_hex(4)}"
        try:
            (self._layers / key).rename(aside)
        except FileNotFoundError:
            return None
        return aside

    def _used(self, key: str) -> Layer | None:
        found = self.layer(key)
        if found is not None:
            os.utime(self._layers / key)
        return found

    @contextmanager
    def _scratch(self, key: str) -> Generator[Path, None, None]:
        scratch = self._building / f"{key}.{secrets.token_hex(4)}"
        scratch.mkdir()
        held = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            scratch.chmod(0o711)
            yield scratch
        finally:
            os.close(held)
            if scratch.exists():
                remove_tree(scratch)

    def _sweep(self) -> None:
        for scratch in self._building.iterdir():
            held = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # a living build's
            else:
                remove_tree(scratch)
            finally:
                os.close(held)


class Hold:
    """The layers that one build stands on."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self.keys: list[str] = []

    async def made(self, key: str, title: str, build: Build, log: Log) -> Layer:
        return await self._layers.made(key, title, build, log, self)


def _disk_bytes(folder: Path) -> int:
    """What its files take on the disk, each once."""
    seen: dict[int, int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(parent, name))
            seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def _commit(scratch: Path, place: Path, title: str) -> None:
    """Rename into place once all of it is on the disk."""
    for leftover in scratch.iterdir():
        if leftover.name != "files":
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    (scratch / "layer.json").write_text(json.dumps({"made_by": title}))
    descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # One sync of the file system: a layer may have many thousand files.
        if _libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed")
        scratch.rename(place)
        parent = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    finally:
        os.close(descriptor)
