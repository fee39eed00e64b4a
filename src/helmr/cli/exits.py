"""Exit codes, which say what kind of end it was. SPEC 13."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
TRANSIENT: Final = 4
NOT_COMPLETED: Final = 5
TIMED_OUT: Final = 124
INTERRUPTED: Final = 130
READER_GONE: Final = 141
