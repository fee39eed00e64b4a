"""Paths in a stack of layers, resolved without mounting it.

The folders come from images of strangers: the host never follows a symbolic link in them. Links are resolved here, within the stack.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from helmr.protocol.errors import ImageFailed

LINKS: Final = 40
OPAQUE: Final = ("trusted.overlay.opaque", "user.overlay.opaque")
"""The mark of a folder that hides those of the same path in lower layers: as root, and as an ordinary user."""


@dataclass(frozen=True, slots=True)
class LayeredView:
    """`layers` bottom first."""

    layers: Sequence[Path]

    def resolve(self, path: str) -> tuple[str, ...]:
        """The names of `path` without links, `.` and `..`, as far as it exists; what doesn't exist stays as it is.

        Raises `ImageFailed` for links in a ring.
        """
        todo, done, followed = names_of(path)[::-1], list[str](), 0
        while todo:
            name = todo.pop()
            if name == "..":
                done = done[:-1]
                continue
            found = self._find([*done, name])
            if found is None or not found.is_symlink():
                done.append(name)
                continue
            followed += 1
            if followed > LINKS:
                raise ImageFailed(f"{path[:200]} leads through too many symbolic links.")
            target = os.readlink(found)
            if target.startswith("/"):
                done = []
            todo += names_of(target)[::-1]
        return tuple(done)

    def file(self, path: str) -> Path | None:
        """Where the ordinary file at `path` lies, its links followed within the stack; None where there is none. Raises `ImageFailed`."""
        names = self.resolve(path)
        found = self._find(names) if names else None
        return found if found is not None and stat.S_ISREG(os.lstat(found).st_mode) else None

    def is_folder(self, path: str) -> bool:
        return bool(self._folders(self.resolve(path)))

    def folder(self, names: Sequence[str]) -> Path:
        """The topmost folder at `names`, which were resolved: its looks are those of the merged one."""
        return self._folders(names)[0]

    def names(self, path: str) -> set[str]:
        """What the folder at `path` holds; nothing where it is no folder."""
        found, hidden = set[str](), set[str]()
        for folder in self._folders(list(self.resolve(path))):
            with os.scandir(folder) as entries:
                for entry in entries:
                    (hidden if is_whiteout(entry.stat(follow_symlinks=False)) else found).add(entry.name)
        return found - hidden

    def _find(self, names: Sequence[str]) -> Path | None:
        for folder in self._folders(names[:-1]):
            entry = folder / names[-1]
            try:
                found = os.lstat(entry)
            except FileNotFoundError:
                continue
            return None if is_whiteout(found) else entry
        return None

    def _folders(self, names: Sequence[str]) -> list[Path]:
        """The folders that are merged at `names`, top first: down to an opaque one, or to something that is no folder."""
        folders = list(reversed(self.layers))
        for name in names:
            below: list[Path] = []
            for folder in folders:
                entry = folder / name
                try:
                    found = os.lstat(entry)
                except FileNotFoundError:
                    continue
                if not stat.S_ISDIR(found.st_mode):
                    break
                below.append(entry)
                if _is_opaque(entry):
                    break
            folders = below
        return folders


def names_of(path: str) -> list[str]:
    """The parts of a path that say something."""
    return [name for name in path.split("/") if name not in ("", ".")]


def is_whiteout(found: os.stat_result) -> bool:
    """Whether this is an overlay's sign that a lower layer's entry is gone."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _is_opaque(folder: Path) -> bool:
    for name in OPAQUE:
        try:
            if os.getxattr(folder, name, follow_symlinks=False) == b"y":
                return True
        except OSError:
            continue  # no such mark, or no right to have set one
    return False
