"""Removing trees that anybody made: of any depth and any modes, never through a symbolic link."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

_OPEN: Final = 64
"""Folders that are open at a time; those further up are opened again from below. Neither descriptors nor Python's stack bound the depth."""
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def erase(folder: Path) -> None:
    """Remove `folder` and all below it; what goes meanwhile by itself is nobody's fault. Raises `OSError`, also when it isn't there."""
    levels = [_Level(_enter(None, os.fspath(folder)))]
    try:
        while True:
            level = levels[-1]
            if level.folders:
                try:
                    below = _enter(level.descriptor, level.folders[-1])
                except FileNotFoundError:
                    level.folders.pop()
                    continue
                levels.append(_Level(below))
                if len(levels) > _OPEN:
                    levels[-_OPEN - 1].close()
            elif len(levels) > 1:
                levels[-2].open_from(level.descriptor)
                levels.pop().close()
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(levels[-1].folders.pop(), dir_fd=levels[-1].descriptor)
            else:
                break
    finally:
        for level in levels:
            level.close()
    os.rmdir(folder)


class _Level:
    """A folder whose files are removed at once, and whose `folders` are left to be."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.folders: list[str] = []
        try:
            found = os.fstat(descriptor)
            self._file = found.st_dev, found.st_ino
            with os.scandir(descriptor) as listing:
                items = [(item.name, item.is_dir(follow_symlinks=False)) for item in listing]
            for name, is_folder in items:
                if is_folder:
                    self.folders.append(name)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=descriptor)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def open_from(self, below: int) -> None:
        """Open it again if it was closed, from a folder in it. Raises `FileNotFoundError` when that lies elsewhere by now."""
        if self.descriptor >= 0:
            return
        self.descriptor = os.open("..", _FLAGS, dir_fd=below)
        found = os.fstat(self.descriptor)
        if (found.st_dev, found.st_ino) != self._file:
            raise FileNotFoundError("A folder was moved while it was removed.")


def _enter(above: int | None, name: str) -> int:
    """Open a folder, for its owner to do anything in it."""
    try:
        folder = os.open(name, _FLAGS, dir_fd=above)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=above)  # overlay's own work folder is one of these
        folder = os.open(name, _FLAGS, dir_fd=above)
    try:
        if stat.S_IMODE(os.fstat(folder).st_mode) & 0o700 != 0o700 and os.geteuid() != 0:
            os.fchmod(folder, 0o700)
    except BaseException:
        os.close(folder)
        raise
    return folder
