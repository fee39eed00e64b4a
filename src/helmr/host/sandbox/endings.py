"""How pid 1 of a bubblewrap sandbox ended: by the exit code of its outer process, or by the note that this left."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from helmr.host.sandbox.driver import Ending


def read_ending(status: Path) -> Ending:
    """By bubblewrap's own note, which it only writes for an ordinary exit."""
    try:
        lines = status.read_text().splitlines()
    except FileNotFoundError:
        return Ending()
    for line in lines:
        with contextlib.suppress(ValueError):
            code = json.loads(line).get("exit-code")
            if isinstance(code, int):
                return ending_of(code)
    return Ending()


def ending_of(code: int) -> Ending:
    """From an exit code that stands for pid 1's, 128 and more for signals."""
    if code < 0:
        return Ending()  # the outer process itself was killed
    return Ending(signal=code - 128) if code > 128 else Ending(code=code)
