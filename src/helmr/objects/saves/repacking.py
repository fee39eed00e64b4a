"""Which packs of the last save are hardly worth their place: their chunks are stored anew by the next, from the files themselves."""

from __future__ import annotations

from typing import Final

from helmr.objects.saves.manifest import Manifest
from helmr.protocol.limits import MIB

LIVE_SHARE: Final = 0.5
"""A pack of which less than this is still needed is wasteful."""
SMALL_BYTES: Final = 4 * MIB
SMALL_PACKS: Final = 16
"""So many small packs, each of one save of a few files, become one."""
REWRITE_BYTES: Final = 64 * MIB
"""The most that one save stores anew for this reason."""


def wasteful(manifest: Manifest) -> frozenset[int]:
    """The numbers of packs to rewrite, emptiest first while their live bytes together are within `REWRITE_BYTES`. Pure."""
    live = [0] * len(manifest.packs)
    for place in manifest.tree.chunks.values():
        live[place.pack] += place.length
    sizes = [pack.size for pack in manifest.packs]
    small = [number for number, size in enumerate(sizes) if size < SMALL_BYTES]
    chosen = {number for number, size in enumerate(sizes) if live[number] < LIVE_SHARE * size}
    if len(small) >= SMALL_PACKS:
        chosen |= set(small)
    found: set[int] = set()
    budget = REWRITE_BYTES
    for number in sorted(chosen, key=lambda number: live[number]):
        if live[number] > budget:
            break
        budget -= live[number]
        found.add(number)
    return frozenset(found)
