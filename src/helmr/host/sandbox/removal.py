"""Removing what guests wrote: any modes, any names, never through a symbolic link."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from helmr.host.sandbox.mounts import exchange


def remove_tree(folder: Path) -> None:
    """Remove `folder` and all below it. A no-op when it isn't there.

    It is renamed first: what a crash interrupts is found by its name (`.gone-...`) and removed at the next start.
    """
    gone = folder.parent / f".gone-{folder.name.removeprefix('.gone-')}"
    if not folder.exists():
        if gone.exists():  # what an earlier call left
            _remove(gone)
        return
    if gone != folder:
        if gone.exists():
            _remove(gone)
        folder.rename(gone)
    _remove(gone)


def exchange_tree(new: Path, folder: Path) -> None:
    """Put the tree `new` in the place of `folder`, at once where the system can, and remove what was there."""
    if sys.platform == "linux":
        exchange(new, folder)
    else:
        remove_tree(folder)
        new.rename(folder)
    descriptor = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    remove_tree(new)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, onerror=_open_up)


def _open_up(remove: Any, path: str, error: Any) -> None:
    """A folder that its owner may not enter (overlay's own work folder is one): open it, and try again."""
    if isinstance(error[1], FileNotFoundError):
        return
    if not isinstance(error[1], PermissionError):
        raise error[1]
    for target in (os.path.dirname(path), path):
        if os.path.isdir(target) and not os.path.islink(target):
            os.chmod(target, 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
