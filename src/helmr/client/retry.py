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
    A `Retry-After` is a floor of the wait. All waits of one call together stay within `patience`.
    """

    attempts: int = 7
    first: float = 0.1
    longest: float = 5.0
    patience: float = 60.0
    draw: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


NEVER = RetryPolicy(attempts=1)


class Backoff:
    """The waits of one call."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._waited = 0.0

    def reset(self) -> None:
        """Progress was made: the next failure is a first one."""
        self._failures = 0
        self._waited = 0.0

    def next(self, floor: float = 0.0) -> float | None:
        """Seconds to wait before the next attempt; None when there is none any more."""
        self._failures += 1
        if self._failures >= self._policy.attempts:
            return None
        grown = min(self._policy.longest, self._policy.first * 2.0 ** (self._failures - 1))
        wait = max(floor, grown * (0.5 + self._policy.draw() / 2))
        if self._waited + wait > self._policy.patience:
            return None
        self._waited += wait
        return wait
