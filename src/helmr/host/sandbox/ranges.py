"""Which ids of the host a Computer's ids 0-65535 are. Never host id 0, never an account's, never another Computer's (DESIGN 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

WIDTH: Final = 65536
_FIRST: Final = 1_900_000_000 // WIDTH + 1
_LAST: Final = 2_140_000_000 // WIDTH - 1
"""Above the usual accounts, subordinate ids and systemd's containers, below 2^31, which some tools take for a negative number."""


class NoRangeLeft(Exception):
    """Every range of ids is taken on this host."""


def choose_range(name: str, taken: Collection[int], *, files: Path = Path("/etc")) -> int:
    """The first id of a free range for the Computer `name`: by its name's hash, so that daemons which don't know each other rarely meet.

    `taken` are first ids in use. Raises `NoRangeLeft`.
    """
    count = _LAST - _FIRST + 1
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % count
    occupied = [*_declared(files)]
    for step in range(count):
        first = (_FIRST + (start + step) % count) * WIDTH
        if first not in taken and not any(first < end and begin < first + WIDTH for begin, end in occupied):
            return first
    raise NoRangeLeft(f"All {count} ranges of ids are in use.")


def _declared(files: Path) -> list[tuple[int, int]]:
    """Ids of accounts and subordinate ranges, as half-open intervals."""
    found: list[tuple[int, int]] = []
    for name, begin, length in (("passwd", 2, None), ("group", 2, None), ("subuid", 1, 2), ("subgid", 1, 2)):
        path = files / name
        if not path.is_file():
            continue
        for line in path.read_text(errors="replace").splitlines():
            words = line.split(":")
            try:
                first = int(words[begin])
                found.append((first, first + (1 if length is None else int(words[length]))))
            except (IndexError, ValueError):
                continue
    return found
