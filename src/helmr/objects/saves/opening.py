"""Opening what lies below a folder without ever following a link: a tree that a guest may be changing meanwhile leads nowhere else."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import Final

_OPENAT2: Final = 437
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_SEGMENT_BYTES: Final = 3000
"""Less than the longest path that the kernel takes at once."""
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
