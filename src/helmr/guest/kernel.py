"""The few calls of the kernel that Python's library lacks. Linux; elsewhere they do nothing and say so."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_SET_NAME: Final = 15
_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> bool:
    """Adopt the orphans among this process's descendants. False where the system can't."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def set_process_name(name: str) -> bool:
    """What `ps` shows, at most 15 bytes."""
    return _prctl(_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def _prctl(option: int, argument: object) -> bool:
    return sys.platform == "linux" and _library.prctl(option, argument, 0, 0, 0) == 0


# Looked up once, before zygotes fork: each look-up makes a class, whose pages every Session process and keeper would hold for itself.
_library: Final = ctypes.CDLL(None, use_errno=True)
