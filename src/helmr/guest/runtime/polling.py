"""An event loop that asks the kernel less often. DESIGN 7: count wake-ups.

asyncio asks the kernel for events before each pass over what is ready, even where a pass only goes on with what the last one began. A
Turn is some passes long, and an epoll_wait that finds nothing costs as much as a pass. So for `UNASKED_SECONDS` after the kernel was
asked, passes that have something to run don't ask again; one that has nothing always does.
"""

from __future__ import annotations

import asyncio
import selectors
from time import monotonic
from typing import Final

UNASKED_SECONDS: Final = 0.001
"""The longest that ready callbacks keep events from being seen."""


class SparingSelector(selectors.DefaultSelector):
    """Answers a question that does not wait with nothing, if it comes soon after another."""

    _asked = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0 and monotonic() - self._asked < UNASKED_SECONDS:
            return []
        found = super().select(timeout)
        self._asked = monotonic()
        return found


def sparing_loop() -> asyncio.AbstractEventLoop:
    """A new event loop with such a selector, also the thread's current one."""
    loop = asyncio.SelectorEventLoop(SparingSelector())
    asyncio.set_event_loop(loop)
    return loop
