"""Where a definition stands in its project, for what is told about it."""

from __future__ import annotations

from dataclasses import dataclass
from types import FrameType


@dataclass(frozen=True, slots=True)
class Definition:
    """Where something was defined: the calling file (absolute) and line."""

    file: str
    line: int


def caller(frame: FrameType | None) -> Definition:
    """Where the function of `frame` was called."""
    outer = frame.f_back if frame is not None else None
    return Definition("", 0) if outer is None else Definition(outer.f_code.co_filename, outer.f_lineno)
