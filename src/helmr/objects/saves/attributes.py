"""Extended attributes that belong to a save, and those that carry ids, which count from the Computer's root there.

Kept: `user.*`, access lists, file capabilities, and what tells an overlay about a folder or file (opaque, redirect, metacopy, whiteouts).
Left out: what an overlay notes about *this* host's layers (origin, impure, nlink, handles), and everything else a guest can't set.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable
from typing import Final

from helmr.objects.saves.owners import IdRange

_CAPABILITY: Final = "security.capability"
_LISTS: Final = ("system.posix_acl_access", "system.posix_acl_default")
_OF_LAYERS: Final = frozenset(("origin", "impure", "nlink", "upper", "uuid"))
_REVISION_3: Final = 0x03000000
_USER, _GROUP = 0x02, 0x08
_LIST_ENTRY: Final = struct.Struct("<HHI")


def is_kept(name: str) -> bool:
    """Whether a save has it, and a restore sets it."""
    for space in ("trusted.overlay.", "user.overlay."):
        if name.startswith(space):
            return name.removeprefix(space) not in _OF_LAYERS
    return name.startswith("user.") or name == _CAPABILITY or name in _LISTS


def read_attributes(file: int | str, ids: IdRange) -> tuple[tuple[str, bytes], ...]:
    """Of an open file, or of a path that is followed (`/proc/self/fd/...`). Sorted."""
    if not hasattr(os, "listxattr"):
        return ()
    try:
        names = os.listxattr(file)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM, errno.EACCES):
            return ()  # no attributes on this file system, or none that this user may see
        raise
    found: list[tuple[str, bytes]] = []
    for name in sorted(filter(is_kept, names)):
        try:
            found.append((name, _translated(name, os.getxattr(file, name), lambda number: ids.inside(number, number))))
        except OSError as error:
            if error.errno != errno.ENODATA:  # taken away meanwhile
                raise
    return tuple(found)


def write_attributes(file: int | str, attributes: Iterable[tuple[str, bytes]], ids: IdRange) -> None:
    """Raises `OSError` where the file system takes none."""
    for name, value in attributes:
        if is_kept(name):
            os.setxattr(file, name, _translated(name, value, lambda number: ids.outside(number, number)))


def _translated(name: str, value: bytes, other: Callable[[int], tuple[int, int]]) -> bytes:
    """The value with its ids changed: `other` gives an id as a user's and as a group's."""
    if name == _CAPABILITY and len(value) == 24 and struct.unpack_from("<I", value)[0] & 0xFF000000 == _REVISION_3:
        return value[:20] + struct.pack("<I", other(struct.unpack_from("<I", value, 20)[0])[0])
    if name in _LISTS and len(value) % _LIST_ENTRY.size == 4:
        entries = _LIST_ENTRY.iter_unpack(value[4:])
        return value[:4] + b"".join(
            _LIST_ENTRY.pack(tag, rights, other(number)[tag == _GROUP] if tag in (_USER, _GROUP) else number)
            for tag, rights, number in entries
        )
    return value
