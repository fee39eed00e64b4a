"""Opening what lies below a folder without ever following a link: a tree that a guest may be changing meanwhile leads nowhere else."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from typing import Final, Protocol

_OPENAT2: Final = 437
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_SEGMENT_BYTES: Final = 3000
"""Less than the longest path that the kernel takes at once."""
_STEP: Final = 32
_KEPT: Final = 256
_TMPFS: Final = 0x01021994
_SYNC_ALL: Final = 1 | 2 | 4
"""Wait for what is being written, write, wait."""

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
_linux = sys.platform == "linux"
_has_openat2 = _linux


def open_below(root: int, path: bytes) -> int:
    """A descriptor of the folder `path` (empty: the root itself) of any length below the open folder `root`. The caller closes it.

    Raises `OSError`: ELOOP when a part of it is a link, ENOENT and ENOTDIR when it isn't there any more.
    """
    if not path:
        return os.open(".", FOLDER_FLAGS, dir_fd=root)
    found = root
    for segment in _segments(path):
        try:
            following = _open_segment(found, segment)
        finally:
            if found != root:
                os.close(found)
        found = following
    return found


class Place(Protocol):
    """A folder in a list of folders: its name, and where the one above it is in the list."""

    @property
    def parent(self) -> int: ...
    @property
    def name(self) -> bytes: ...


class Trail:
    """Opens folders of a tree by where they are in a list of them, which may grow. On the way to folders that lie deep some stay open: else
    all of it would be gone down for each, thousands of folders for thousands."""

    def __init__(self, root: int, folders: Sequence[Place]) -> None:
        self._root, self._folders = root, folders
        self._kept: dict[int, int] = {}

    def open(self, parent: int, name: bytes) -> int:
        """A descriptor of the folder `name` in the folder number `parent` (-1: the root itself), which the caller closes.

        Raises `OSError` as `open_below` does.
        """
        way: list[tuple[int, bytes]] = [(-1, name)]
        at = parent
        while at > 0 and at not in self._kept:
            way.append((at, self._folders[at].name))
            at = self._folders[at].parent
        found = self._kept.get(at, self._root)
        while len(way) > _STEP:
            step, way = way[-_STEP:], way[:-_STEP]
            found = self._keep(step[0][0], open_below(found, b"/".join(part for _, part in reversed(step))))
        return open_below(found, b"/".join(part for _, part in reversed(way)))

    def _keep(self, number: int, folder: int) -> int:
        if len(self._kept) >= _KEPT:
            os.close(self._kept.pop(next(iter(self._kept))))
        self._kept[number] = folder
        return folder

    def close(self) -> None:
        while self._kept:
            os.close(self._kept.popitem()[1])


def settle(file: int) -> None:
    """Write a file's dirty pages out, so that a write through an existing memory mapping shows in its times from now on.

    A page that is dirty already takes writes without a fault, and so without a new time. No-op where there is no such call.
    """
    if not _linux:
        return
    if _libc.sync_file_range(file, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(_SYNC_ALL)) < 0:
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.ESPIPE, errno.EINVAL):
            raise OSError(code, os.strerror(code))


def shows_mapped_writes(file: int) -> bool:
    """Whether `settle` works on the file system of an open file. tmpfs never writes pages out."""
    if not _linux:
        return True
    found = ctypes.create_string_buffer(256)
    if _libc.fstatfs(file, found) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return ctypes.c_long.from_buffer(found).value != _TMPFS


def sync_file_system(file: int) -> None:
    """Make everything on the file system of an open file durable."""
    if not _linux:
        os.sync()
    elif _libc.syncfs(file) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _segments(path: bytes) -> list[bytes]:
    if len(path) <= _SEGMENT_BYTES:
        return [path]
    found: list[bytes] = []
    for part in path.split(b"/"):
        if found and len(found[-1]) + len(part) < _SEGMENT_BYTES:
            found[-1] += b"/" + part
        else:
            found.append(part)
    return found


def _open_segment(folder: int, path: bytes) -> int:
    global _has_openat2
    if _has_openat2:
        how = struct.pack("=QQQ", FOLDER_FLAGS, 0, _NO_SYMLINKS | _BENEATH)
        number = _libc.syscall(ctypes.c_long(_OPENAT2), folder, ctypes.c_char_p(path), ctypes.c_char_p(how), ctypes.c_size_t(len(how)))
        if number >= 0:
            return number
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EPERM):
            raise OSError(code, os.strerror(code), path)
        _has_openat2 = code != errno.ENOSYS and _has_openat2  # EPERM: a filter of system calls may say so, or the folder does
    return _open_by_parts(folder, path)


def _open_by_parts(folder: int, path: bytes) -> int:
    found = folder
    for part in path.split(b"/"):
        try:
            following = os.open(part, FOLDER_FLAGS, dir_fd=found)
        finally:
            if found != folder:
                os.close(found)
        found = following
    return found
