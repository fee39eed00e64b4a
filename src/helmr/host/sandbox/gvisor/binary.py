"""Where gVisor's program is, and which one it is."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "HELMR_RUNSC"
REMEDY: Final = (
    "Install gVisor's runsc of 2024-07 or later: on Debian 12 `apt-get install -t bookworm-backports runsc`, on Debian 13 `apt-get install "
    f"runsc`; or put the program on PATH, or its path into {VARIABLE}."
)
_SECONDS: Final = 10.0


def find_runsc() -> Path | None:
    """The executable that HELMR_RUNSC names, else the one on PATH; None where there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named) if os.access(named, os.X_OK) else None
    found = shutil.which("runsc")
    return None if found is None else Path(found)


@cache
def version(binary: Path) -> str:
    """What it calls itself. Raises `OSError` for a program that does not run."""
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    return done.stdout.partition("\n")[0].removeprefix("runsc version ").strip() or "unknown"


@cache
def processor() -> str:
    """Tells processors apart on which an image of memory would not go on alike: their model and features."""
    text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    lines = [line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part", "vendor_id"))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
