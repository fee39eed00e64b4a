"""The advisory locks of Helmr, so that no two meanings share a key: the first of two 32-bit keys names the kind, the second the thing."""

from __future__ import annotations

import zlib
from typing import Final

MIGRATION: Final = 0x48454C00
"""Held by whoever migrates."""

CODE_VERSION: Final = 0x48454C01
"""Held shared by each control plane, the second key being the number of its newest migration."""

LEADER: Final = 0x48454C02
"""Held by the leader of a duty, the second key being that of the duty's name."""


def key(name: str) -> int:
    """A signed 32-bit key for a name."""
    value = zlib.crc32(name.encode())
    return value - (1 << 32) if value >= 1 << 31 else value
