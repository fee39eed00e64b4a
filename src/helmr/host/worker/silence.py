"""What becomes of a Computer whose supervisor does not answer: reported, then ended, so that its Sessions can go on. UD-15, [S14].

It is ended only when hostd says that its processes aren't stopped by us: a Computer without a lease stands still, and answers later (I8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol

from helmr.host.worker.failure import Failure, failure_of, logger
from helmr.host.worker.gate import HostdGate
from helmr.host.worker.ports import HostdRefused
from helmr.host.worker.pulse import PulseConfig

CODE = "computer_unresponsive"


class Silenced(Protocol):
    """What this needs of its Computer."""

    id: str

    @property
    def gate(self) -> HostdGate: ...
    @property
    def pulse(self) -> PulseConfig: ...
    @property
    def is_ours(self) -> bool: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
    def silent(self, since: str | None) -> None: ...
    def forgive(self) -> None: ...
    async def give_up(self, error: Failure) -> None: ...


class Silence:
    """Of one Computer, over all its streams."""

    def __init__(self, computer: Silenced) -> None:
        self._computer = computer
        self._since: tuple[float, str] | None = None
        self._times = 0
        self._ending: asyncio.Task[None] | None = None

    def heard(self) -> None:
        """It said hello, which the control plane hears of."""
        self._since, self._times = None, 0

    def unheard(self) -> None:
        """It was waited for in vain: after a lease of that it counts as hung. Once is never enough: this process may have stood still."""
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now, datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            self._computer.silent(self._since[1])
        self._times += 1
        config = self._computer.pulse
        if self._times > 1 and now - self._since[0] >= config.period_seconds * config.most:
            self.hung(self._since[1])

    def hung(self, since: str) -> None:
        """End it, if it isn't known to stand still."""
        if self._ending is None or self._ending.done():
            self._ending = self._computer.spawn(self._end(since), f"unresponsive-{self._computer.id}")

    async def _end(self, since: str) -> None:
        computer = self._computer
        try:
            if not computer.is_ours:
                return
            if await computer.gate.stands_still(computer.id):
                computer.forgive()
                self._since, self._times = None, 0
                return
            logger.warning("computer.unresponsive", computer=computer.id, since=since)
            await computer.give_up(Failure(code=CODE, message=f"The Computer did not answer since {since}, and was ended."))
        except (OSError, HostdRefused) as error:
            # hostd is away, or knows better: it is looked at again with the next silence.
            logger.warning("computer.unresponsive_not_ended", computer=computer.id, message=failure_of(error).message)
