"""Owners in a save: ids count from the Computer's own root, whatever range of the host's ids it has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

OVERFLOW: Final = 65534
"""Who owns a file whose owner lies outside the range; the kernel shows it inside by the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """The ids of a Computer on this host: its id 0 is `uid` (of groups `gid`), and so on for `width` ids."""

    uid: int
    gid: int
    width: int = 65536

    @classmethod
    def mapped(cls, first: int) -> IdRange:
        """A range of its own, as the drivers with user namespaces give."""
        return cls(uid=first, gid=first)

    @classmethod
    def here(cls) -> IdRange:
        """Without a mapping: every id for root; for an ordinary user its own alone, which counts as root inside."""
        if os.geteuid() == 0:
            return cls(uid=0, gid=0, width=1 << 32)
        return cls(uid=os.geteuid(), gid=os.getegid(), width=1)

    def inside(self, uid: int, gid: int) -> tuple[int, int]:
        """From the host's ids."""
        return _shifted(uid, self.uid, self.width), _shifted(gid, self.gid, self.width)

    def outside(self, uid: int, gid: int) -> tuple[int, int]:
        """To the host's ids; what the range is too narrow for becomes its root's."""
        return self.uid + (uid if uid < self.width else 0), self.gid + (gid if gid < self.width else 0)


def _shifted(number: int, first: int, width: int) -> int:
    return number - first if first <= number < first + width else OVERFLOW
