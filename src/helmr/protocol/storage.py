"""How full a disk is, and when that is too full. SPEC [C7]."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from helmr.protocol.errors import ConfigurationMissing

HIGH_VARIABLE: Final = "HELMR_STORAGE_HIGH"
LOW_VARIABLE: Final = "HELMR_STORAGE_LOW"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system as whoever writes to it sees it, in bytes."""

    total: int
    """What lies there and what may still be written; without what is reserved for root."""
    free: int
    share: float
    """The used part of it, from 0 to 1: of its bytes or of its inodes, whichever is scarcer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterMarks:
    """Shares of a disk from which on it is too full, and under which it is not any more."""

    high: float = 0.90
    low: float = 0.85

    def pressed(self, share: float, before: bool) -> bool:
        """Whether a disk used to `share` is too full now; `before`: it was when it was looked at last."""
        return share >= self.high or (before and share > self.low)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ, *, default: WaterMarks | None = None) -> WaterMarks:
        """`HELMR_STORAGE_HIGH` and `HELMR_STORAGE_LOW`, as `90%`; the low mark follows a high one that is set alone, five points under it.

        Raises `ConfigurationMissing` naming the variable that is wrong.
        """
        high, low = _share(environ, HIGH_VARIABLE), _share(environ, LOW_VARIABLE)
        if high is None and low is None:
            return default or cls()
        if high is None:
            high = (default or cls()).high
        if low is None:
            low = max(0.0, round(high - (cls().high - cls().low), 6))
        if low > high:
            raise ConfigurationMissing(f"{LOW_VARIABLE} is above {HIGH_VARIABLE}: {low:.0%} and {high:.0%}.", hint="")
        return cls(high=high, low=low)


OWN_MACHINE: Final = WaterMarks(high=0.98, low=0.97)
"""For `helmr dev`: a developer's disk is fuller than a server's, and other things than Computers fill it."""


def disk_of(path: Path) -> Disk:
    """The disk that `path` lies on. Raises `OSError`."""
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    total = (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize
    shares = [1 - free / total] if total else [1.0]
    inodes = found.f_files - found.f_ffree + found.f_favail
    if inodes > 0:  # a file system that makes inodes as it needs them says 0
        shares.append(1 - found.f_favail / inodes)
    return Disk(total=total, free=free, share=max(shares))


def fullest(disks: Iterable[Disk]) -> Disk:
    """The one that is used most. Raises `ValueError` for none."""
    return max(disks, key=lambda disk: disk.share)


def _share(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = -1.0
    if number == text or not 0 < share <= 1:
        raise ConfigurationMissing(f'{name} must be a part of a disk, such as "90%", not {text!r}.', hint="")
    return share
