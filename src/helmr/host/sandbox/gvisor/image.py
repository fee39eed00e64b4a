"""Whether the memory of a sandbox may go to disk, and whether an image of it is whole [C6], I9."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from pathlib import Path

from helmr.host.sandbox.driver import Unfit

_DELETED = " (deleted)"


def check_descriptors(pid: int, passed: Collection[int], *, careless: bool = False) -> None:
    """Raise `Unfit` for what would make an image that can't be gone on from: gVisor itself would write it without a word.

    `pid` is the paused sandbox, `passed` are the inodes of sockets that we gave it. `careless` passes over deleted files.
    """
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:[") and int(target[8:-1]) in passed:
            raise Unfit("a process of the Computer holds a stream of the host")
        if not careless and target.endswith(_DELETED) and not target.startswith("/memfd:"):
            raise Unfit(f"a deleted file is still open: {inside(target.removesuffix(_DELETED))}")


def holds_any(pid: int, inodes: Collection[int]) -> bool:
    """Whether a process has a socket of these inodes."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}") in wanted:
                return True
        except FileNotFoundError:
            continue
    return False


def note_passed(file: Path, inode: int) -> None:
    """Remember a socket that a sandbox is given, for this hostd and a later one."""
    with file.open("a") as notes:
        notes.write(f"{inode}\n")


def passed_inodes(file: Path) -> frozenset[int]:
    """The sockets that a sandbox was given in its present life."""
    return frozenset(map(int, file.read_text().split())) if file.exists() else frozenset()


def inside(path: str) -> str:
    """A path of the staged root as the guest sees it, made fit to be shown."""
    name = path.removeprefix("/root") if path.startswith("/root/") else path
    return name.encode("utf-8", "backslashreplace").decode()[:200]


def seal(draft: Path, target: Path) -> int:
    """Put a written image into its place beside it, surely on disk with all that the Computer has written; its bytes. Raises `Unfit`.

    After a power loss there is either no image, or one with the files that it goes with.
    """
    files = [path for path in draft.iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if not any(path.stat().st_size for path in files):
        raise Unfit("gVisor wrote an empty image")
    for path in files:
        path.chmod(0o600)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # The Computer's files lie on the same file system, and are part of what memory refers to.
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")
        draft.rename(target)
    finally:
        os.close(descriptor)
    parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
    return size
