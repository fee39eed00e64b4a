"""What the worker keeps so that it need not fetch it again: blobs, bundles, files of images. All of it may go [C7]."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

IDLE_SECONDS: Final = 600.0
"""What was asked for within this time stays: somebody may be just about to read it."""
UNFINISHED_SECONDS: Final = 86_400.0
"""What was never finished stays so long: somebody may still be at it."""

_PLACES: Final = ("bundles/*/*", "image-blobs/*/*", "blobs/*/[0-9a-f][0-9a-f]/*")


def used(path: Path) -> None:
    """Note that somebody reads it now. Raises `FileNotFoundError` when it is not there (any more)."""
    os.utime(path)


def collect(cache: Path, *, idle_seconds: float = IDLE_SECONDS) -> int:
    """Remove from the folder `cache` what nobody asked for within `idle_seconds`; how many entries. What is in use is in use by its copy,
    or by an open descriptor: nobody holds a path for longer than that."""
    removed = 0
    for place in _PLACES:
        for path in cache.glob(place):
            idle = max(idle_seconds, UNFINISHED_SECONDS) if path.name.startswith(".") else idle_seconds
            try:
                if time.time() - path.lstat().st_mtime < idle:
                    continue
                if path.is_dir() and not path.is_symlink():
                    aside = path.with_name(f".{path.name}.collected")
                    path.rename(aside)  # whole or not there
                    shutil.rmtree(aside)
                else:
                    path.unlink()
            except FileNotFoundError:
                continue  # gone by itself
            removed += 1
    return removed
