"""What keeps a Session's Computer awake between Turns: requests that wait for an answer, and `keep_awake`. SPEC [C6].

Counted here, and told to the supervisor when a count leaves or reaches zero: nothing is said per Turn. The supervisor answers for all
Sessions when the host asks whether the Computer may sleep.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Literal

AWAKE_SECONDS: Final = 24 * 3600.0
"""The longest that one `keep_awake` counts."""

Kind = Literal["requests", "kept"]


class Flight:
    """One thing in flight. `end` is idempotent and may come from any thread; one that nobody holds any more has ended."""

    __slots__ = ("_ended", "_flights", "_kind")

    def __init__(self, flights: Flights, kind: Kind) -> None:
        self._flights, self._ended = flights, False
        self._kind: Kind = kind

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._flights.ended(self._kind)

    def __del__(self) -> None:
        self.end()


class Flights:
    """The counts of this process. `tell(requests, kept)` is called in the event loop: at once when that is where a count changes, so that a
    request that blocks the loop has been told."""

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {"requests": 0, "kept": 0}
        self._lock = threading.RLock()  # a collected Flight may end in the middle of another's beginning
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._tell: Callable[[int, int], None] | None = None
        self._told = (False, False)

    def attend(self, tell: Callable[[int, int], None]) -> None:
        """From now on tell it, from the running event loop."""
        self._loop, self._thread, self._tell = asyncio.get_running_loop(), threading.get_ident(), tell
        self._told = (False, False)
        self._say()

    def leave(self) -> None:
        """Tell nobody any more: the event loop ends."""
        self._loop = self._tell = None

    def begin(self, kind: Kind = "requests") -> Flight:
        """Something begins."""
        with self._lock:
            self._counts[kind] += 1
            first = self._counts[kind] == 1
        if first:
            self._changed()
        return Flight(self, kind)

    def ended(self, kind: Kind) -> None:
        """A `Flight` ended."""
        with self._lock:
            self._counts[kind] -= 1
            last = self._counts[kind] == 0
        if last:
            self._changed()

    def _changed(self) -> None:
        loop = self._loop
        if loop is None:
            return
        if threading.get_ident() == self._thread:
            self._say()
            return
        try:
            loop.call_soon_threadsafe(self._say)
        except RuntimeError:
            return  # the loop is closed: the process ends

    def _say(self) -> None:
        requests, kept = self._counts["requests"], self._counts["kept"]
        if self._tell is not None and (bool(requests), bool(kept)) != self._told:
            self._told = (bool(requests), bool(kept))
            self._tell(requests, kept)


flights: Final = Flights()
"""Of this process: the modules that are counted are the process's, too."""
