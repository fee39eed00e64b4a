"""Removing what guests wrote: any modes, any names, never through a symbolic link."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any


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
