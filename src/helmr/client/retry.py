"""When to try again: bounded, jittered, never sooner than the server asks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How transport failures and retryable refusals are repeated. Times in seconds.

    Waits grow from `first` to `longest`, each jittered to between half and the whole of it, so that many clients don't return at once.
    A `Retry-After` is a floor of the wait. All waits of one call together stay within `patience`. What takes long anyway, waiting for a
    Turn and following a timeline, goes on over an outage of a server that was reached before, for `waiting_patience` and any attempts.
    """

    attempts: int = 7
    first: float = 0.1
    longest: float = 5.0
    patience: float = 60.0
    waiting_patience: float = 300.0
    draw: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


NEVER = RetryPolicy(attempts=1)


class Backoff:
    """The waits of one call."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self._failures = 0
        self._waited = 0.0

    def reset(self) -> None:
        """Progress was made: the next failure is a first one."""
        self._failures = 0
        self._waited = 0.0

    def next(self, floor: float = 0.0, *, waiting: bool = False) -> float | None:
        """Seconds to wait before the next attempt; None when there is none any more. `waiting`: by the patience of waits and streams."""
        policy = self.policy
        self._failures += 1
        if self._failures >= policy.attempts and (not waiting or policy.attempts <= 1):
            return None
        grown = min(policy.longest, policy.first * 2.0 ** min(self._failures - 1, 30))
        wait = max(floor, grown * (0.5 + policy.draw() / 2))
        if self._waited + wait > (policy.waiting_patience if waiting else policy.patience):
            return None
        self._waited += wait
        return wait
