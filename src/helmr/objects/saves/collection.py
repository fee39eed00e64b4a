"""Which packs nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPack:
    """A pack in the object store."""

    name: str
    stored_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """A save that is being written. It may still be committed, and while it may, this is known of it."""

    began_at: datetime
    base: Set[str] = frozenset()
    """The packs of its previous manifest, any of which it may need."""


def plan_collection(
    live_manifests: Iterable[Set[str]], packs: Iterable[StoredPack], now: datetime, grace: timedelta, *, writing: Iterable[Writing] = ()
) -> frozenset[str]:
    """The names of packs to delete. Pure. `live_manifests`, `writing` and `now` are of one moment; `packs` may be listed later.

    `live_manifests` are the packs (`referenced`) of every save that may ever be restored. A pack stays that one of them needs, that the
    base of a save being written needs, that may belong to such a save (stored since it began), or that is younger than `grace`, which
    covers a save that began after `writing` was read. Deleting in any order, also after any pause, is safe: no pack gets a name that
    another had, so a save that begins later needs nothing of this.

    Who commits a save must see in the same transaction that it still counts as being written: one that was given up for lost may have lost
    packs.
    """
    writing = list(writing)
    needed: set[str] = set()
    for names in live_manifests:
        needed |= names
    for save in writing:
        needed |= save.base
    before = min([now - grace, *(save.began_at for save in writing)])
    return frozenset(pack.name for pack in packs if pack.name not in needed and pack.stored_at < before)
