"""Bundles in a Computer: copied once into a folder that the guest sees read-only, so that no mount is made while it runs."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from helmr.host.hostd.failure import BundleInvalid

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def place(source: Path, folder: Path, digest: str, uid: int) -> None:
    """Copy the tree `source` to `folder/digest`. A no-op when it is there.

    hostd may read more than the worker that names `source`: what user `uid` doesn't own and others may not read is refused, as are special
    files and links that leave the tree. Raises `BundleInvalid`.
    """
    if _DIGEST.fullmatch(digest) is None:
        raise BundleInvalid("A bundle's digest is 64 lower-case hexadecimal digits.")
    target = folder / digest
    if target.is_dir():
        return
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    try:
        try:
            root = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise BundleInvalid(f"The bundle's folder {source} can't be opened: {error.strerror}.") from error
        try:
            _copy(root, draft, uid, depth=0)
        finally:
            os.close(root)
        draft.chmod(0o755)
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _copy(source: int, target: Path, uid: int, *, depth: int) -> None:
    """Copy what lies in the open folder `source`, by descriptors, so that a path that changes meanwhile leads nowhere else."""
    _check_access(os.fstat(source), target.name, uid)
    for name in os.listdir(source):
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            link = os.readlink(name, dir_fd=source)
            if os.path.isabs(link) or _climbs(link, depth):
                raise BundleInvalid(f"The link {name} leads out of the bundle.")
            (target / name).symlink_to(link)
        elif stat.S_ISDIR(found.st_mode):
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
            try:
                (target / name).mkdir(mode=0o755)
                _copy(child, target / name, uid, depth=depth + 1)
            finally:
                os.close(child)
        elif stat.S_ISREG(found.st_mode):
            _copy_file(source, name, target / name, uid)
        else:
            raise BundleInvalid(f"{name} is neither a file, a folder nor a link.")


def _copy_file(source: int, name: str, target: Path, uid: int) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=source)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        _check_access(found, name, uid)
        with target.open("xb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    target.chmod(0o755 if found.st_mode & 0o100 else 0o644)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _check_access(found: os.stat_result, name: str, uid: int) -> None:
    if uid not in (0, found.st_uid) and not found.st_mode & 0o004:
        raise BundleInvalid(f"{name} is not readable by the worker that named it.")


def _climbs(link: str, depth: int) -> bool:
    for part in link.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return False
