"""Making files of a save: in a folder of their own, which gets its name when all of it is there and right [C5]."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from helmr.objects.erasing import erase
from helmr.objects.saves.attributes import write_attributes
from helmr.objects.saves.crew import Crew
from helmr.objects.saves.hints import GRAIN_NS, NOT_SEEN, Seen, now_ns, seen_of, write_hints
from helmr.objects.saves.keys import SaveKeys, Sealer
from helmr.objects.saves.manifest import FOLDER, LINK, PIPE, REGULAR, WHITEOUT, Entry, Manifest, check_tree, digest, read_manifest
from helmr.objects.saves.opening import FOLDER_FLAGS, Trail, sync_file_system
from helmr.objects.saves.owners import IdRange
from helmr.protocol.errors import BaseMismatch, SaveDamaged

Fetch = Callable[[str], BinaryIO]
"""Opens a pack by its name, for reading at any place, from any thread; closed here. Raises `SaveDamaged` when there is none."""

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    files: int
    bytes: int
    seconds: float
    layout: str
    hints: bytes
    """For the first save of the restored tree: `Previous.hints`."""


def restore_tree(
    manifest: bytes, *, fetch: Fetch, keys: SaveKeys, target: Path, ids: IdRange, name: str | None = None, layout: str | None = None
) -> RestoreReport:
    """Make the folder `target`, which must not exist, whole and durable or not at all.

    `name` is the manifest's own, if known; `layout` what its files must be of. Every chunk is checked against its name. A crash leaves a
    folder beside `target` whose name begins with `.restoring-`. Nothing but that folder is ever written to.
    Raises `SaveDamaged` naming what is wrong, `BaseMismatch` for another layout, `FileExistsError`, and `OSError` of the disk.
    """
    began = time.monotonic()
    if name is not None and digest(manifest) != name:
        raise SaveDamaged(f"The bytes of the manifest are not those of {name}.")
    sealer = Sealer(keys)
    read = read_manifest(manifest, sealer)
    check_tree(read)
    if layout is not None and read.tree.layout != layout:
        raise BaseMismatch(f"The save has files of the layout {read.tree.layout!r}; here {layout!r} is needed.")
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists.")
    aside = target.parent / f".restoring-{target.name}-{secrets.token_hex(8)}"
    aside.mkdir(0o700)
    try:
        root = os.open(aside, FOLDER_FLAGS)
        try:
            restoring = _Restoring(root, read, sealer, fetch, ids)
            files, size, seen = restoring.run()
            sync_file_system(root)
        finally:
            os.close(root)
        os.rename(aside, target)
    except BaseException:
        erase(aside)
        raise
    _sync_folder(target.parent)
    hints = write_hints(name or digest(manifest), seen)
    return RestoreReport(files=files, bytes=size, seconds=round(time.monotonic() - began, 6), layout=read.tree.layout, hints=hints)


@dataclass(frozen=True, slots=True)
class _Writing:
    file: int
    entry: Entry


class _Restoring:
    def __init__(self, root: int, manifest: Manifest, sealer: Sealer, fetch: Fetch, ids: IdRange) -> None:
        self._root, self._manifest, self._tree, self._sealer, self._ids = root, manifest, manifest.tree, sealer, ids
        self._trail = Trail(root, self._tree.folders)
        self._packs = _Packs(manifest, fetch)
        self._named: dict[int, tuple[int, bytes]] = {}
        self._links: list[tuple[int, bytes, tuple[int, bytes]]] = []
        """A folder, the name to be made in it, and the folder and name of the file that it names."""
        self._bytes = 0
        self._files = 0

    def run(self) -> tuple[int, int, list[list[Seen]]]:
        with closing(self._trail):
            return self._run()

    def _run(self) -> tuple[int, int, list[list[Seen]]]:
        try:
            with Crew(self._write) as crew:
                for number in range(len(self._tree.folders)):
                    self._make_folder(number, crew)
                crew.join()
        finally:
            self._packs.close()
        for folder, name, source in self._links:
            self._link(folder, name, source)
        seen: list[list[Seen]] = [[] for _ in self._tree.folders]
        # From the deepest up: a folder that its owner may not enter is closed when all in it is finished.
        for number in reversed(range(len(self._tree.folders))):
            self._finish_folder(number, seen[number])
        self._dress(self._root, self._tree.root)
        return self._files, self._bytes, seen

    def _make_folder(self, number: int, crew: Crew[_Writing]) -> None:
        descriptor = self._open(number)
        try:
            for entry in self._tree.folders[number].entries:
                self._make(descriptor, number, entry, crew)
        finally:
            os.close(descriptor)

    def _open(self, number: int) -> int:
        folder = self._tree.folders[number]
        return self._trail.open(folder.parent, folder.name)

    def _make(self, folder: int, number: int, entry: Entry, crew: Crew[_Writing]) -> None:
        name = entry.name
        if entry.kind == FOLDER:
            os.mkdir(name, 0o700, dir_fd=folder)
        elif entry.kind == REGULAR:
            self._files += 1
            self._bytes += entry.size if entry.extents is None else sum(length for _, length in entry.extents)
            if entry.inode and (source := self._named.get(entry.inode)) is not None:
                self._links.append((number, name, source))
                return
            if entry.inode:
                self._named[entry.inode] = (number, name)
            crew.add(_Writing(os.open(name, _NEW, 0o600, dir_fd=folder), entry), entry.size)
        elif entry.kind == LINK:
            os.symlink(entry.target, name, dir_fd=folder)
            self._own(folder, entry)
        elif entry.kind == PIPE:
            os.mkfifo(name, 0o600, dir_fd=folder)
            self._own(folder, entry)
        elif entry.kind == WHITEOUT:
            os.mknod(name, 0o020000 | entry.mode, 0, dir_fd=folder)
            self._own(folder, entry)

    def _own(self, folder: int, entry: Entry) -> None:
        """Owner, mode and time of what can't be opened."""
        uid, gid = self._ids.outside(entry.uid, entry.gid)
        os.chown(entry.name, uid, gid, dir_fd=folder, follow_symlinks=False)
        if entry.kind != LINK:
            os.chmod(entry.name, entry.mode, dir_fd=folder)  # nobody else can have put a link here
        os.utime(entry.name, ns=(entry.mtime, entry.mtime), dir_fd=folder, follow_symlinks=False)

    def _write(self, job: _Writing) -> None:
        """In a thread of the crew."""
        try:
            entry = job.entry
            extents = iter(entry.extents if entry.extents is not None else ((0, entry.size),))
            offset, left = next(extents, (0, 0))
            for chunk in entry.chunks:
                content = self._content(chunk)
                if len(content) > left:
                    raise SaveDamaged(f"The file {os.fsdecode(entry.name)!r} has a chunk across a hole.")
                _write_at(job.file, content, offset)
                offset, left = offset + len(content), left - len(content)
                if not left:
                    offset, left = next(extents, (0, 0))
            if entry.extents is not None:
                os.ftruncate(job.file, entry.size)
            self._dress(job.file, entry)
        finally:
            os.close(job.file)

    def _content(self, chunk: bytes) -> bytes:
        place = self._tree.chunks[chunk]
        return self._sealer.open_chunk(self._packs.read(place.pack, place.offset, place.length), chunk, place.size)

    def _dress(self, file: int, entry: Entry) -> None:
        """Owner, attributes, mode and time of an open file or folder, in an order in which none undoes another."""
        os.fchown(file, *self._ids.outside(entry.uid, entry.gid))
        write_attributes(file, entry.attributes, self._ids)
        os.fchmod(file, entry.mode)
        os.utime(file, ns=(entry.mtime, entry.mtime))

    def _link(self, number: int, name: bytes, source: tuple[int, bytes]) -> None:
        descriptor = self._open(number)
        try:
            other = self._open(source[0])
            try:
                os.link(source[1], name, src_dir_fd=other, dst_dir_fd=descriptor, follow_symlinks=False)
            finally:
                os.close(other)
        finally:
            os.close(descriptor)

    def _finish_folder(self, number: int, seen: list[Seen]) -> None:
        """The attributes of the folders in this one, whose own folders are finished, and hints for all entries."""
        folder = self._tree.folders[number]
        descriptor = self._open(number)
        try:
            for entry in folder.entries:
                if entry.kind == FOLDER:
                    child = os.open(entry.name, FOLDER_FLAGS, dir_fd=descriptor)
                    try:
                        self._dress(child, entry)
                    finally:
                        os.close(child)
            sure_before = now_ns() - GRAIN_NS
            for entry in folder.entries:
                found = os.stat(entry.name, dir_fd=descriptor, follow_symlinks=False)
                seen.append(seen_of(found) if found.st_ctime_ns < sure_before else NOT_SEEN)
        finally:
            os.close(descriptor)


class _Packs:
    """Packs by number, each fetched once, when it is first needed."""

    def __init__(self, manifest: Manifest, fetch: Fetch) -> None:
        self._names = [pack.name for pack in manifest.packs]
        self._fetch = fetch
        self._files: dict[int, BinaryIO] = {}
        self._locks = [threading.Lock() for _ in self._names]

    def read(self, number: int, offset: int, length: int) -> bytes:
        file = self._files.get(number)
        if file is None:
            with self._locks[number]:
                file = self._files.get(number)
                if file is None:
                    file = self._files[number] = self._fetch(self._names[number])
        data = os.pread(file.fileno(), length, offset)
        if len(data) != length:
            raise SaveDamaged(f"The pack {self._names[number]} is cut off.")
        return data

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _write_at(file: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        offset, rest = offset + written, rest[written:]


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, FOLDER_FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
