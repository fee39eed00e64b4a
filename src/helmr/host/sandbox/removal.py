"""Removing what guests wrote: any modes, any names, never through a symbolic link."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from helmr.host.sandbox.mounts import exchange
from helmr.objects.erasing import erase


def remove_tree(folder: Path) -> None:
    """Remove `folder` and all below it. A no-op when it isn't there.

    It is renamed first: what a crash interrupts is found by its name (`.gone-...`) and removed at the next start.
    """
    gone = folder.parent / f".gone-{folder.name.removeprefix('.gone-')}"
    if not folder.exists():
        if gone.exists():  # what an earlier call left
            erase(gone)
        return
    if gone != folder:
        if gone.exists():
            erase(gone)
        folder.rename(gone)
    erase(gone)


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
