"""The layers below an overlay's upper folder, where some names of a file may lie whose bytes lie above.

An overlay with an index copies a file up under the one name that it was written by; its other names go on showing the layers' folders, and
the copy through the index, which is of one host and in no save. So a save gives those names to the copy, and a restore makes them.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.objects.saves.attributes import read_attributes
from helmr.objects.saves.hints import NOT_SEEN, Seen
from helmr.objects.saves.manifest import FOLDER, REGULAR, Entry, Folder
from helmr.objects.saves.opening import FOLDER_FLAGS, open_below
from helmr.objects.saves.owners import IdRange

_NLINK: Final = "trusted.overlay.nlink"
_ORIGIN: Final = "trusted.overlay.origin"
_OPAQUE: Final = "trusted.overlay.opaque"
_REDIRECT: Final = "trusted.overlay.redirect"
_HANDLE_AT: Final = 21
_HANDLE_BYTES: Final = 128

_libc = ctypes.CDLL(None, use_errno=True)


class Lowers:
    """`layers` are folders that never change, bottom first; none: no overlay, or one without an index."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._layers = [os.open(layer, FOLDER_FLAGS) for layer in layers]
        self._names: dict[bytes, tuple[bytes, ...]] = {}
        self._groups: dict[tuple[int, int], list[tuple[int, bytes]]] | None = None

    def close(self) -> None:
        for layer in self._layers:
            os.close(layer)
        self._layers.clear()

    def names_of(self, folder: int, name: bytes) -> tuple[bytes, ...]:
        """The paths by which the layers show the file that the upper file `name`, in the open `folder`, was copied from.

        Nothing for a file that was not copied up, had one name, or has all above. Raises `OSError` of the layers' disk.
        """
        if not self._layers:
            return ()
        path = b"/proc/self/fd/%d/%s" % (folder, name)
        try:
            links = os.getxattr(path, _NLINK, follow_symlinks=False)
            # "U+1": one name more in all than the upper file has, whose index is one too.
            if links[:1] == b"U" and int(links[1:]) < 0:
                return ()
            origin = os.getxattr(path, _ORIGIN, follow_symlinks=False)
        except (OSError, ValueError):
            return ()
        found = self._names.get(origin)
        if found is None:
            found = self._names[origin] = self._shown(origin)
        return found

    def folder(self, path: bytes, name: bytes) -> Entry:
        """The layers' folder `path` as an entry `name`: with it an upper folder looks as the one that it is laid over. Raises `OSError`."""
        for layer in reversed(self._layers):
            try:
                folder = open_below(layer, path)
            except FileNotFoundError:
                continue
            try:
                found, attributes = os.fstat(folder), read_attributes(folder, IdRange.here())
            finally:
                os.close(folder)
            own = tuple((key, value) for key, value in attributes if not key.startswith("trusted.overlay."))
            mode, ids = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
            return Entry(name=name, kind=FOLDER, mode=mode, uid=ids[0], gid=ids[1], mtime=found.st_mtime_ns, attributes=own)
        raise FileNotFoundError(os.fsdecode(path))

    def _shown(self, origin: bytes) -> tuple[bytes, ...]:
        file = self._file(origin)
        if file is None:
            return ()
        if self._groups is None:
            self._groups = self._find_groups()
        return tuple(path for layer, path in self._groups.get(file, ()) if not self._is_hidden(layer, path))

    def _file(self, origin: bytes) -> tuple[int, int] | None:
        """Device and inode of the file that an origin's handle names; None when it is none of these layers'."""
        if len(origin) <= _HANDLE_AT or origin[1] != 0xFB:
            return None
        handle = origin[_HANDLE_AT:]
        asked = struct.pack("=Ii", len(handle), origin[4]) + handle.ljust(_HANDLE_BYTES, b"\0")
        for layer in self._layers:
            file = _libc.open_by_handle_at(layer, ctypes.c_char_p(asked), os.O_PATH | os.O_CLOEXEC)
            if file >= 0:
                try:
                    found = os.fstat(file)
                    return found.st_dev, found.st_ino
                finally:
                    os.close(file)
        return None

    def _find_groups(self) -> dict[tuple[int, int], list[tuple[int, bytes]]]:
        """Of each file in the layers that has many names: where they lie."""
        found: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for number, layer in enumerate(self._layers):
            for parent, _, names, folder in os.fwalk(b".", dir_fd=layer):
                for name in names:
                    seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(seen.st_mode) and seen.st_nlink > 1:
                        path = os.path.normpath(os.path.join(parent, name))
                        found.setdefault((seen.st_dev, seen.st_ino), []).append((number, path))
        return found

    def _is_hidden(self, layer: int, path: bytes) -> bool:
        """Whether a layer further up has something else at this path, or nothing there on purpose."""
        parts = path.split(b"/")
        for above in self._layers[layer + 1 :]:
            for length in range(1, len(parts) + 1):
                at = b"/".join(parts[:length])
                try:
                    seen = os.stat(at, dir_fd=above, follow_symlinks=False)
                except FileNotFoundError:
                    break
                if length == len(parts) or not stat.S_ISDIR(seen.st_mode) or _is_opaque(above, at):
                    return True
        return False


class Upper:
    """The upper folder as it was found, to which names from below are added."""

    def __init__(self, folders: list[Folder], seen: list[list[Seen]], lowers: Lowers) -> None:
        self._folders, self._seen, self._lowers = folders, seen, lowers
        self._numbers = {(folder.parent, folder.name): number for number, folder in enumerate(folders)}
        self._slots: dict[int, dict[bytes, int]] = {}

    def add(self, path: bytes) -> tuple[int, int] | None:
        """The place of a new entry at `path`, whose folders are added where they are missing; None when something here is, or hides it."""
        *folders, name = path.split(b"/")
        at = 0
        for depth, part in enumerate(folders, 1):
            slot = self._slots_of(at).get(part)
            if slot is None:
                self._append(at, self._lowers.folder(b"/".join(folders[:depth]), part))
                self._numbers[at, part] = len(self._folders)
                self._folders.append(Folder(parent=at, name=part, entries=[]))
                self._seen.append([])
            elif _hides(self._folders[at].entries[slot]) or (at, part) not in self._numbers:
                return None
            at = self._numbers[at, part]
        if name in self._slots_of(at):
            return None
        return self._append(at, Entry(name=name, kind=REGULAR, mode=0, uid=0, gid=0, mtime=0))

    def _append(self, folder: int, entry: Entry) -> tuple[int, int]:
        entries = self._folders[folder].entries
        self._slots_of(folder)[entry.name] = len(entries)
        entries.append(entry)
        self._seen[folder].append(NOT_SEEN)
        return folder, len(entries) - 1

    def _slots_of(self, folder: int) -> dict[bytes, int]:
        found = self._slots.get(folder)
        if found is None:
            found = self._slots[folder] = {entry.name: slot for slot, entry in enumerate(self._folders[folder].entries)}
        return found


def _hides(entry: Entry) -> bool:
    """Whether nothing of the layers shows below an upper entry."""
    attributes = dict(entry.attributes)
    return entry.kind != FOLDER or attributes.get(_OPAQUE) == b"y" or _REDIRECT in attributes


def _is_opaque(folder: int, path: bytes) -> bool:
    """Whether nothing of the layers below shows in the folder `path` below an open one."""
    try:
        return os.getxattr(b"/proc/self/fd/%d/%s" % (folder, path), _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False
