"""The difference between absent and null.

`UNSET` marks a value that was not given; `None` is a value (JSON null). SPEC [S1].
"""

from __future__ import annotations

import enum
from typing import Final, Literal


class UnsetType(enum.Enum):
    """The type of `UNSET`; an enum, so that type checkers narrow `value is UNSET`."""

    UNSET = "UNSET"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = UnsetType.UNSET
"""Not given. Falsy, and never equal to None."""
