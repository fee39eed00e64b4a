"""Which Deployments lose their blobs. SPEC [D3]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A Deployment that has its blobs. `needed`: it is the current one, is being built, or has an open Session or a Computer."""

    id: UUID
    deployed: bool
    needed: bool
    unneeded_since: datetime | None


def decide_collection(newest_first: Sequence[Candidate], *, before: datetime, keep: int) -> list[UUID]:
    """Those of one Environment that nothing needs, since earlier than `before`, and that are not among its `keep` latest deployed ones.

    The latest stay whatever their age, so that one can go back to them.
    """
    kept = {one.id for one in [one for one in newest_first if one.deployed][:keep]}
    return [
        one.id
        for one in newest_first
        if not one.needed and one.id not in kept and one.unneeded_since is not None and one.unneeded_since < before
    ]
