"""What goes through a proxy now, and whether a Computer may sleep on it. SPEC [C6].

A plain exchange counts until it has ended. A tunnel says nothing of what it carries: it counts while bytes came in the last 15 s, and up to
15 min when the last ones were the guest's, since then an answer is due. A connection without a request counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

QUIET_SECONDS: Final = 15.0
"""A tunnel that carried nothing for so long is idle, unless an answer is due."""
ANSWER_SECONDS: Final = 15 * 60.0
"""How long an answer to the guest's last bytes may be due."""
LOOK_SECONDS: Final = 60.0
"""When to look again at what nobody can say the end of."""

Side = Literal["guest", "origin"]


@dataclass(slots=True, kw_only=True)
class Passage:
    """One request on its way through: from its head, over the dialling, to its end. Times are seconds of one clock."""

    tunnel: bool
    moved_at: float
    """When the last bytes came."""
    mover: Side = "guest"

    def moved(self, side: Side, now: float) -> None:
        """Bytes came from that side."""
        self.mover, self.moved_at = side, now

    def busy_for(self, now: float) -> float:
        """How long it will count if nothing more comes; 0 when it is idle."""
        if not self.tunnel:
            return LOOK_SECONDS
        limit = ANSWER_SECONDS if self.mover == "guest" else QUIET_SECONDS
        return max(0.0, self.moved_at + limit - now)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """`retry_seconds`: when it is worth looking again."""

    exchanges: int
    tunnels: int
    retry_seconds: float

    def __bool__(self) -> bool:
        return bool(self.exchanges or self.tunnels)

    def __str__(self) -> str:
        counts = ((self.exchanges, "proxied request"), (self.tunnels, "tunnel"))
        return " and ".join(f"{count} {noun}{'s' if count != 1 else ''}" for count, noun in counts if count)


def in_flight(passages: Iterable[Passage], now: float) -> InFlight:
    """What counts at `now`."""
    busy = [(passage, left) for passage in passages if (left := passage.busy_for(now)) > 0]
    tunnels = sum(passage.tunnel for passage, _ in busy)
    # A due answer comes when it comes: nobody waits for the end of its quarter of an hour.
    retry = max((min(left, LOOK_SECONDS) for _, left in busy), default=0.0)
    return InFlight(exchanges=len(busy) - tunnels, tunnels=tunnels, retry_seconds=retry)
