"""Hints: what each entry of a save looked like on this host, so that the next save reads only what has changed.

They are of use on the host and tree they were made on, and only beside the manifest that they name. A lost hint costs a read, never a byte:
a file whose inode, change time, size and modification time are the same has the same bytes, and one that changed within the clock's
grain of being read has no hint.
"""

from __future__ import annotations

import os
import time
from array import array
from typing import Final, TypeAlias

import msgspec

from helmr.objects.saves.manifest import Entry, Folder, Tree

GRAIN_NS: Final = 20_000_000
"""Two writes within this time may have one change time: twice the coarsest tick of Linux."""
NOT_SEEN: Final = (0, 0)
_WORD: Final = (1 << 64) - 1

Seen: TypeAlias = tuple[int, int]
"""Inode and change time (ns) of an entry."""


def seen_of(found: os.stat_result) -> Seen:
    return found.st_ino, found.st_ctime_ns


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    manifest: str
    seen: bytes


def now_ns() -> int:
    """The clock that change times are taken from."""
    return time.time_ns()


def write_hints(manifest: str, seen: list[list[Seen]]) -> bytes:
    """`seen` has a list for each folder of the tree, in its order of entries."""
    numbers = array("Q")
    for folder in seen:
        for inode, changed in folder:
            numbers.append(inode)
            numbers.append(changed & _WORD)
    return msgspec.msgpack.encode(_Stored(manifest, numbers.tobytes()))


def read_hints(data: bytes, manifest: str, tree: Tree) -> list[list[Seen]] | None:
    """None for hints of another manifest, or that are damaged."""
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
    except msgspec.MsgspecError:
        return None
    numbers = array("Q")
    if stored.manifest != manifest or len(stored.seen) != 16 * sum(len(folder.entries) for folder in tree.folders):
        return None
    numbers.frombytes(stored.seen)
    flat = list(zip(numbers[::2], numbers[1::2], strict=True))
    found: list[list[Seen]] = []
    start = 0
    for folder in tree.folders:
        found.append(flat[start : start + len(folder.entries)])
        start += len(folder.entries)
    return found


class Known:
    """A tree as it was seen last: the entries of each folder by name, with their hints."""

    def __init__(self, folders: list[Folder], seen: list[list[Seen]] | None) -> None:
        self._folders = folders
        self._seen = seen
        self._places = {(folder.parent, folder.name): number for number, folder in enumerate(folders)}

    @property
    def root(self) -> int:
        """The number of the root folder, -1 when nothing is known."""
        return 0 if self._folders else -1

    def child(self, folder: int, name: bytes) -> int:
        """The number of a folder in a folder, -1 if there was none."""
        return self._places.get((folder, name), -1) if folder >= 0 else -1

    def entries(self, folder: int) -> dict[bytes, tuple[Entry, Seen]]:
        if folder < 0 or self._seen is None:
            return {}
        entries = self._folders[folder].entries
        return {entry.name: (entry, seen) for entry, seen in zip(entries, self._seen[folder], strict=True)}
