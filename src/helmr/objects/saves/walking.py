"""Walking a tree by stat: entries that look as they did are taken as they were, the others are read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from helmr.objects.saves.attributes import read_attributes
from helmr.objects.saves.content import Content, NotRegular, Take, open_file, read_content
from helmr.objects.saves.crew import Crew
from helmr.objects.saves.hints import GRAIN_NS, NOT_SEEN, Known, Seen, now_ns, seen_of
from helmr.objects.saves.lowers import Lowers, Upper
from helmr.objects.saves.manifest import FOLDER, LINK, PIPE, REGULAR, WHITEOUT, Entry, Folder
from helmr.objects.saves.opening import Trail, shows_mapped_writes
from helmr.objects.saves.owners import IdRange

DEPTH: Final = 4096
PATH_BYTES: Final = 1 << 16
"""Folders that lie deeper, or whose path is longer, are not walked into: sixteen times what a path of the kernel's can name."""
NAMED: Final = 20
"""How many paths are named of each kind."""
_SHOWN_BYTES: Final = 300
_SOCKET: Final = stat.S_IFSOCK >> 12
_GONE: Final = frozenset((errno.ENOENT, errno.ELOOP, errno.ENOTDIR))
"""What opening a folder answers that has moved, or is another thing by now. Any other answer fails the save: all in it would be missing."""
_NO_FILE: Final = frozenset((errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO))
"""What opening a file answers when its name stands for another thing by now."""


Stamp: TypeAlias = tuple[int, int, int]
"""Inode, modification and change time (ns) of a folder."""


@dataclass(slots=True)
class Walk:
    """What was found. `seen` has the hints of `folders`' entries."""

    root: Entry
    folders: list[Folder] = field(default_factory=list[Folder])
    seen: list[list[Seen]] = field(default_factory=list[list[Seen]])
    stamps: list[Stamp] = field(default_factory=list[Stamp])
    """Of each folder, just before its names were read."""
    read: int = 0
    torn: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    sockets: int = 0

    def path(self, folder: int) -> bytes:
        """Where a folder lies below the root, whose own path is empty. Nobody keeps it: a deep tree's paths would fill the memory."""
        parts: list[bytes] = []
        while folder > 0:
            parts.append(self.folders[folder].name)
            folder = self.folders[folder].parent
        return b"/".join(reversed(parts))

    def is_as(self, earlier: Walk) -> bool:
        """Whether both met the same folders with the same names in them: then nothing has moved past the earlier one unseen."""
        return self.stamps == earlier.stamps and [(one.parent, one.name) for one in self.folders] == [
            (one.parent, one.name) for one in earlier.folders
        ]


def walk(
    root: int,
    *,
    ids: IdRange,
    known: Known,
    has: Callable[[bytes], bool],
    take: Take,
    lowers: Lowers,
    exclude: frozenset[bytes] = frozenset(),
) -> Walk:
    """Walk the open folder `root`. `known` is the tree as it was, `has` tells whether a chunk is stored, `take` stores one; over `lowers`
    the tree is laid.

    What vanishes meanwhile is left out; what changes while it is read is told in `torn`. Raises `OSError`.
    """
    return _Walker(root, ids, known, has, take, lowers, exclude).run()


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A folder to be walked: the place of its own entry, and which folder of the known tree it was."""

    name: bytes
    parent: int
    slot: int
    known: int
    depth: int
    length: int
    """Of its path."""


@dataclass(slots=True)
class _Reading:
    """A file that is being read, and the place of its entry."""

    file: int
    folder: int
    slot: int
    attributes: tuple[tuple[str, bytes], ...]
    content: Content | None = None


class _Walker:
    def __init__(
        self,
        root: int,
        ids: IdRange,
        known: Known,
        has: Callable[[bytes], bool],
        take: Take,
        lowers: Lowers,
        exclude: frozenset[bytes],
    ) -> None:
        self._ids, self._known, self._has, self._take, self._lowers, self._exclude = ids, known, has, take, lowers, exclude
        self._found = Walk(root=self._plain(b"", os.fstat(root), FOLDER, attributes=read_attributes(root, ids)))
        self._sure_before = now_ns() - GRAIN_NS if shows_mapped_writes(root) else 0  # 0: no hint is ever sure, all is read each time
        self._trail = Trail(root, self._found.folders)
        self._ahead = [_Ahead(b"", -1, 0, known.root, 0, 0)]
        self._readings: list[_Reading] = []
        self._links: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """The places of each file that may have many names."""
        self._below: dict[tuple[int, int], tuple[bytes, ...]] = {}
        """The paths by which the layers show such a file."""

    def run(self) -> Walk:
        with Crew(self._read) as crew, closing(self._trail):
            while self._ahead:
                ahead = self._ahead.pop()
                try:
                    folder = self._trail.open(ahead.parent, ahead.name)
                except OSError as error:
                    if ahead.parent < 0 or error.errno not in _GONE:
                        raise
                    _name(self._found.torn, self._path(ahead.parent, ahead.name))
                    continue
                try:
                    self._walk_folder(folder, ahead, crew)
                finally:
                    os.close(folder)
            crew.join()
        for reading in self._readings:
            self._fill(reading)
        if self._below:
            self._add_names()
        self._join_links()
        return self._found

    def _walk_folder(self, folder: int, ahead: _Ahead, crew: Crew[_Reading]) -> None:
        number, known = len(self._found.folders), self._known.entries(ahead.known)
        entries: list[Entry] = []
        seen: list[Seen] = []
        self._found.folders.append(Folder(parent=ahead.parent, name=ahead.name, entries=entries))
        self._found.seen.append(seen)
        own = os.fstat(folder)
        self._found.stamps.append((own.st_ino, own.st_mtime_ns, own.st_ctime_ns))
        if ahead.parent >= 0 and (attributes := read_attributes(folder, self._ids)):
            above = self._found.folders[ahead.parent].entries
            above[ahead.slot] = msgspec.structs.replace(above[ahead.slot], attributes=attributes)
        below: list[_Ahead] = []
        with os.scandir(folder) as listing:
            for item in sorted(listing, key=_name_of):
                name = os.fsencode(item.name)
                if self._exclude and self._path(number, name) in self._exclude:
                    continue
                try:
                    found = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                kind = found.st_mode >> 12
                old = known.get(name)
                place = (number, len(entries))
                if kind == FOLDER:
                    length = ahead.length + 1 + len(name)
                    if ahead.depth >= DEPTH or length > PATH_BYTES:
                        _name(self._found.refused, self._path(number, name))
                        continue
                    below.append(_Ahead(name, number, place[1], self._known.child(ahead.known, name), ahead.depth + 1, length))
                    entry = self._plain(name, found, FOLDER)
                elif kind == REGULAR and found.st_nlink > 1 and self._is_another_name(folder, name, found, place):
                    entry = self._plain(name, found, REGULAR)  # the first name's content comes in the end
                elif old is not None and self._same(old, found, kind):
                    entry = old[0]
                elif kind == REGULAR:
                    if (reading := self._open(folder, item.name, place)) is None:
                        self._links.pop((found.st_dev, found.st_ino), None)
                        continue
                    self._readings.append(reading)
                    crew.add(reading, found.st_size)
                    entry = self._plain(name, found, REGULAR)
                elif (other := self._other(folder, number, item.name, found, kind)) is not None:
                    entry = other
                else:
                    continue
                entries.append(entry)
                seen.append(seen_of(found) if found.st_ctime_ns < self._sure_before else NOT_SEEN)
        self._ahead += reversed(below)

    def _same(self, old: tuple[Entry, Seen], found: os.stat_result, kind: int) -> bool:
        entry, seen = old
        if seen != seen_of(found) or entry.kind != kind or entry.mtime != found.st_mtime_ns:
            return False
        return kind != REGULAR or (entry.size == found.st_size and all(map(self._has, entry.chunks)))

    def _is_another_name(self, folder: int, name: bytes, found: os.stat_result, place: tuple[int, int]) -> bool:
        file = found.st_dev, found.st_ino
        places = self._links.setdefault(file, [])
        places.append(place)
        if len(places) == 1 and (names := self._lowers.names_of(folder, name)):
            self._below[file] = names
        return len(places) > 1

    def _open(self, folder: int, name: str, place: tuple[int, int]) -> _Reading | None:
        """None for what is gone, or is no file any more."""
        try:
            file = open_file(folder, name)
        except (FileNotFoundError, NotRegular):
            return None
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            return None
        try:
            return _Reading(file, *place, read_attributes(file, self._ids))
        except BaseException:
            os.close(file)
            raise

    def _read(self, reading: _Reading) -> None:
        """In a thread of the crew."""
        try:
            reading.content = read_content(reading.file, self._take)
        finally:
            os.close(reading.file)

    def _fill(self, reading: _Reading) -> None:
        content, entries = reading.content, self._found.folders[reading.folder].entries
        assert content is not None
        self._found.read += 1
        entry = self._plain(entries[reading.slot].name, content.found, REGULAR, attributes=reading.attributes)
        entries[reading.slot] = msgspec.structs.replace(entry, size=content.size, chunks=content.chunks, extents=content.extents)
        sure = not content.torn and content.found.st_ctime_ns < self._sure_before
        self._found.seen[reading.folder][reading.slot] = seen_of(content.found) if sure else NOT_SEEN
        if content.torn:
            _name(self._found.torn, self._path(reading.folder, entry.name))

    def _other(self, folder: int, number: int, name: str, found: os.stat_result, kind: int) -> Entry | None:
        """What is neither folder nor file; None for what a save doesn't have."""
        if kind == LINK:
            try:
                target = os.readlink(os.fsencode(name), dir_fd=folder)
            except OSError:
                return None  # gone, or another thing by now
            return msgspec.structs.replace(self._plain(os.fsencode(name), found, LINK), target=target)
        if kind == PIPE:
            return self._plain(os.fsencode(name), found, PIPE)
        if kind == WHITEOUT and found.st_rdev == 0:
            return self._plain(os.fsencode(name), found, WHITEOUT)
        if kind == _SOCKET:
            self._found.sockets += 1
        else:
            _name(self._found.refused, self._path(number, os.fsencode(name)))
        return None

    def _add_names(self) -> None:
        """Give the files that have names in the layers a place for each that nothing here hides."""
        tree = Upper(self._found.folders, self._found.seen, self._lowers)
        for file, names in self._below.items():
            if (places := self._links.get(file)) is not None:
                for path in names:
                    if (place := tree.add(path)) is not None:
                        places.append(place)

    def _join_links(self) -> None:
        """Give all names of a file its first one's content, and the same number."""
        number = 0
        for places in self._links.values():
            folder, slot = places[0]
            first, seen = self._found.folders[folder].entries[slot], self._found.seen[folder][slot]
            number += len(places) > 1
            for folder, slot in places:
                entries = self._found.folders[folder].entries
                entries[slot] = msgspec.structs.replace(first, name=entries[slot].name, inode=number if len(places) > 1 else 0)
                self._found.seen[folder][slot] = seen

    def _path(self, folder: int, name: bytes) -> bytes:
        above = self._found.path(folder)
        return above + b"/" + name if above else name

    def _plain(self, name: bytes, found: os.stat_result, kind: int, *, attributes: tuple[tuple[str, bytes], ...] = ()) -> Entry:
        uid, gid = self._ids.inside(found.st_uid, found.st_gid)
        mode = stat.S_IMODE(found.st_mode)
        return Entry(name=name, kind=kind, mode=mode, uid=uid, gid=gid, mtime=found.st_mtime_ns, attributes=attributes)


def _name(told: list[str], path: bytes) -> None:
    """Name a path in a report, as many as it has room for, and the end of a long one."""
    if len(told) < NAMED:
        told.append(os.fsdecode(path if len(path) <= _SHOWN_BYTES else b"..." + path[-_SHOWN_BYTES:]))


def _name_of(item: os.DirEntry[str]) -> str:
    return item.name
