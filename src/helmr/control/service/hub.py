"""The event hub: live followers of Sessions and waiters for Turns, in memory, bounded. Readers never delay a Turn (I7).

What commits here is pushed; what commits elsewhere, or too fast for a follower, is read from the log. A follower's position is a
cursor into the log, so it neither skips nor repeats, whatever is lost on the way [E1], [E4].
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from helmr.control.service.reply import StoredEvent

_BUFFER_EVENTS: Final = 1024
_BUFFER_BYTES: Final = 2 << 20


class Follower:
    """One reader's buffer. When it overflows it is emptied, and the reader goes on from the log."""

    __slots__ = ("_bytes", "_events", "_wake", "behind")

    def __init__(self) -> None:
        self._events: deque[StoredEvent] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self.behind = True
        """Something may be in the log that was not pushed."""

    def push(self, events: Sequence[StoredEvent]) -> None:
        if not self.behind:
            self._events.extend(events)
            for event in events:
                self._bytes += len(event.body)
            if len(self._events) > _BUFFER_EVENTS or self._bytes > _BUFFER_BYTES:
                self.lag()
        self._wake.set()

    def lag(self) -> None:
        """Forget the buffer: the log has it all."""
        self._events.clear()
        self._bytes = 0
        self.behind = True
        self._wake.set()

    def take(self, after: int) -> list[StoredEvent]:
        """The pushed events that follow `after` without a gap; a gap means `behind`."""
        events = [event for event in self._events if event.sequence > after]
        self._events.clear()
        self._bytes = 0
        if events and events[0].sequence != after + 1:
            self.behind = True
            return []
        return events

    async def wait(self, seconds: float) -> bool:
        """Wait until something was pushed; False when the time ran out."""
        if not self._events and not self.behind:
            self._wake.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return False
        return True


class Hub:
    """All followers and waiters of this control plane."""

    def __init__(self) -> None:
        self.on_activity: Callable[[str], None] | None = None
        """Called with the Session whenever something happens here, for those who want to see all of them (`helmr dev`)."""
        self._followers: dict[str, set[Follower]] = {}
        self._waiters: dict[str, list[tuple[str, asyncio.Future[dict[str, Any] | None]]]] = {}

    def follow(self, session_id: str) -> Follower:
        follower = Follower()
        self._followers.setdefault(session_id, set()).add(follower)
        return follower

    def unfollow(self, session_id: str, follower: Follower) -> None:
        group = self._followers.get(session_id)
        if group is not None:
            group.discard(follower)
            if not group:
                del self._followers[session_id]

    def followed(self, session_id: str) -> bool:
        """Whether anybody follows: events are rendered for pushing only then."""
        if self.on_activity is not None:
            self.on_activity(session_id)
        return session_id in self._followers

    def push(self, session_id: str, events: Sequence[StoredEvent]) -> None:
        for follower in self._followers.get(session_id, ()):
            follower.push(events)

    def touch(self, session_id: str) -> None:
        """The Session changed by another way than a push: followers read the log, waiters look again."""
        if self.on_activity is not None:
            self.on_activity(session_id)
        self.wake(session_id)

    def wake(self, id: str) -> None:
        """Whoever waits for this Session or Command looks again."""
        for follower in self._followers.get(id, ()):
            follower.lag()
        for _, future in self._waiters.pop(id, ()):
            if not future.done():
                future.set_result(None)

    def touch_all(self) -> None:
        """Notices may have been lost: everybody looks again."""
        for session_id in {*self._followers, *self._waiters}:
            self.touch(session_id)

    def settled(self, session_id: str, turn_id: str, members: dict[str, Any]) -> None:
        """A Turn settled: `members` are the columns of its row that changed."""
        waiting = self._waiters.get(session_id)
        if waiting is None:
            return
        rest: list[tuple[str, asyncio.Future[dict[str, Any] | None]]] = []
        for pair in waiting:
            if pair[0] != turn_id:
                rest.append(pair)
            elif not pair[1].done():
                pair[1].set_result(members)
        if rest:
            self._waiters[session_id] = rest
        else:
            del self._waiters[session_id]

    def expect(self, session_id: str, turn_id: str) -> asyncio.Future[dict[str, Any] | None]:
        """A future of the Turn's next change: its settlement's members, or None for "look again"."""
        future: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(session_id, []).append((turn_id, future))
        return future

    def forget(self, session_id: str, future: asyncio.Future[dict[str, Any] | None]) -> None:
        waiting = self._waiters.get(session_id)
        if waiting is None:
            return
        rest = [pair for pair in waiting if pair[1] is not future]
        if rest:
            self._waiters[session_id] = rest
        else:
            del self._waiters[session_id]
