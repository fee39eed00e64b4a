"""Whether a Computer's supervisor answers, asked each renew period; and what it says is in flight. UD-15, [C6].

That the guest runs is a signal of its own, apart from its handler: a pegged CPU delays answers, only a guest that is stopped or broken
gives none for a whole lease. Periods are counted, not seconds: a worker that stood still itself has missed one question, not many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from helmr.protocol.limits import LEASE_SECONDS, RENEW_SECONDS

ANSWER_SECONDS: Final = 5.0
"""How long a Computer that is to sleep may take to say what is in flight."""
NOTICED: Final = 3
"""Questions left unanswered before anybody is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseConfig:
    """`most` questions unanswered in a row, one each `period_seconds`, are a whole lease: then the guest counts as hung."""

    period_seconds: float = RENEW_SECONDS
    most: int = int(LEASE_SECONDS // RENEW_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the Session processes of a Computer say is in flight. Their word: it keeps their own Computer awake, and nothing else."""

    requests: int = 0
    kept: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests or self.kept)

    def __str__(self) -> str:
        parts = [f"{self.requests} HTTP request{'s' if self.requests != 1 else ''} of Sessions"] if self.requests else []
        parts += [f"{self.kept} keep_awake"] if self.kept else []
        return " and ".join(parts)


class Pulse:
    """Of one joined stream: `start`, then `stop`. `ask(n)` sends a question, `rests()` says that answers aren't being read now.

    `on_silent(since)` is told when answers stay away, and with None when they come again on this stream; `on_hung(since)` each
    period once they stayed away for too long.
    """

    def __init__(
        self,
        config: PulseConfig,
        *,
        ask: Callable[[int], None],
        rests: Callable[[], bool],
        on_silent: Callable[[str | None], None],
        on_hung: Callable[[str], None],
    ) -> None:
        self._config = config
        self._ask, self._rests, self._on_silent, self._on_hung = ask, rests, on_silent, on_hung
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = self._answered = self._missed = 0
        self._since = ""
        self._waiting: dict[int, asyncio.Future[Held]] = {}

    def start(self) -> None:
        self._next()

    def stop(self) -> None:
        """Ask no more. Whoever waits for an answer gets `ConnectionResetError`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("The supervisor's stream ended."))
        self._waiting.clear()

    def forgive(self) -> None:
        """It could not answer: it stands still by our own doing."""
        self._missed = 0

    async def held(self) -> Held:
        """What is in flight now. Raises `TimeoutError`, `ConnectionResetError`."""
        number = self._question()
        waiting = self._waiting[number] = self._loop.create_future()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await waiting
        finally:
            self._waiting.pop(number, None)

    def answer(self, said: Mapping[str, Any]) -> None:
        """A pong. Raises `TypeError`, `ValueError` or `AttributeError` for a malformed one."""
        number = int(said["n"])
        if not self._answered < number <= self._asked:
            return
        self._answered = number
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            told = [cast("Mapping[str, Any]", one) for one in said.get("held", {}).values()]
            waiting.set_result(
                Held(requests=sum(int(one.get("requests", 0)) for one in told), kept=sum(int(one.get("kept", 0)) for one in told))
            )
        if self._missed >= NOTICED:
            self._on_silent(None)
        self._missed = 0

    def _question(self) -> int:
        self._asked += 1
        self._ask(self._asked)
        return self._asked

    def _next(self) -> None:
        self._timer = self._loop.call_later(self._config.period_seconds, self._look)

    def _look(self) -> None:
        self._next()
        if self._answered < self._asked and not self._rests():
            self._missed += 1
            if self._missed == 1:
                self._since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            if self._missed == NOTICED:
                self._on_silent(self._since)
            if self._missed >= self._config.most:
                self._on_hung(self._since)
                return
        self._question()
