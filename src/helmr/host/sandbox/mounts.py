"""The mount and namespace calls of Linux that Python 3.11 lacks, by ctypes. Only `os` and `ctypes`: the launcher
imports it on the way of every cold start.

Each call raises `OSError` with the call's name and paths. They change the state of the calling process, so they
belong in one that has a single thread and nothing else to do.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REC = 0x4000
MS_PRIVATE = 1 << 18

ATTR_RDONLY = 0x1
ATTR_NOSUID = 0x2
ATTR_NODEV = 0x4
ATTR_IDMAP = 0x00100000

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_RENAME_EXCHANGE = 0x2
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4

# The numbers of these three calls are the same on every architecture: they are younger than the unified table.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _path(path: str | os.PathLike[str]) -> ctypes.c_char_p:
    return ctypes.c_char_p(os.fsencode(path))


def clone_tree(path: str | os.PathLike[str], *, recursive: bool = False) -> int:
    """A descriptor of a detached copy of the mount that `path` shows, rooted at `path`."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    number = ctypes.c_long(_SYS_OPEN_TREE)
    return _check(_libc.syscall(number, _AT_FDCWD, _path(path), ctypes.c_uint(flags)), f"open_tree {os.fspath(path)}")


def set_attributes(tree: int, attributes: int, *, user_namespace: int | None = None) -> None:
    """Set mount attributes on a detached tree; with a user namespace its files appear with that namespace's ids (an idmapped mount)."""
    if user_namespace is not None:
        attributes |= ATTR_IDMAP
    value = struct.pack("=QQQQ", attributes, 0, 0, user_namespace or 0)
    number = ctypes.c_long(_SYS_MOUNT_SETATTR)
    result = _libc.syscall(number, tree, _path(""), ctypes.c_uint(_AT_EMPTY_PATH), ctypes.c_char_p(value), ctypes.c_size_t(len(value)))
    _check(result, "mount_setattr")


def attach_tree(tree: int, target: str | os.PathLike[str]) -> None:
    """Mount a detached tree at `target`."""
    number = ctypes.c_long(_SYS_MOVE_MOUNT)
    result = _libc.syscall(number, tree, _path(""), _AT_FDCWD, _path(target), ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH))
    _check(result, f"move_mount to {os.fspath(target)}")


def mount(source: str, target: str | os.PathLike[str], kind: str, flags: int = 0, options: str = "") -> None:
    data = _path(options) if options else None
    result = _libc.mount(_path(source), _path(target), _path(kind), ctypes.c_ulong(flags), data)
    _check(result, f"mount {kind or source} on {os.fspath(target)} ({options or 'no options'})")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def enter(namespace: int, kind: int) -> None:
    """Enter the namespace of the open descriptor `namespace`."""
    _check(_libc.setns(namespace, kind), "setns")


def exchange(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> None:
    """Let two paths of one file system change places, atomically."""
    number, flag = ctypes.c_int(_AT_FDCWD), ctypes.c_uint(_RENAME_EXCHANGE)
    _check(_libc.renameat2(number, _path(one), number, _path(other), flag), f"exchange of {os.fspath(one)} and {os.fspath(other)}")


PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def raise_inheritable() -> None:
    """Make every permitted capability inheritable too, so that it survives an exec after the bounding set shrank."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(header, data), "capget")
    effective0, permitted0, _, effective1, permitted1, _ = struct.unpack("=6I", data.raw[:24])
    both = ctypes.create_string_buffer(struct.pack("=6I", effective0, permitted0, permitted0, effective1, permitted1, permitted1))
    _check(_libc.capset(header, both), "capset")
