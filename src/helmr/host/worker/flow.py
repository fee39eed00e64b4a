"""How much may wait where: the marks of flow control between supervisors, worker and control plane (DESIGN I4)."""

from __future__ import annotations

from typing import Final

from helmr.protocol.limits import MIB

HIGH_WATER: Final = 4 * MIB
"""A link with more than this queued makes the worker stop reading its supervisors."""

LOW_WATER: Final = MIB
"""Under this they are read again."""

OVERFLOW_BYTES: Final = 64 * MIB
"""A link whose other end takes nothing is lost here; everything on it is repeatable."""

DOWN_BYTES: Final = 16 * MIB
"""What may wait for one supervisor; a Computer that takes less than it is sent loses its stream, and hears it all again on the next."""

MESSAGE_BYTES: Final = 16 * MIB
"""The longest link message; a group of frames is at most one read and one frame."""

FRAMES_PER_SECOND: Final = 100_000.0
"""What one Computer may say in the long run; a faster one is read more slowly."""

FRAMES_BURST: Final = 200_000.0


class Allowance:
    """A token bucket that may go into debt: `take` counts what has come and says how long to rest before reading on."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, now: float, rate: float = FRAMES_PER_SECOND, burst: float = FRAMES_BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, count: int, now: float) -> float:
        """Seconds to rest; 0 while the allowance lasts."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - count
        self._at = now
        return 0.0 if self._left >= 0 else -self._left / self._rate
