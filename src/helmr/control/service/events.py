"""Timelines: pages, and following live. SPEC [E1], [E3], [E4]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from helmr.control.service import render
from helmr.control.service.authority import session_of
from helmr.control.service.core import Core
from helmr.control.service.principals import Principal
from helmr.control.service.reply import StoredEvent
from helmr.control.store.queries import events
from helmr.protocol.errors import CursorExpired, InvalidCursor, SessionNotFound
from helmr.protocol.ids import is_id
from helmr.protocol.limits import EVENTS_PAGE_BYTES, EVENTS_PAGE_MAX

HEARTBEAT_SECONDS: Final = 15.0

_FOLLOW_BYTES: Final = 256 << 10
"""What one reader that is behind may hold of the log while it doesn't read: there may be a thousand of them (UD-52)."""


class Events:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._reading: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By Environment: the readers of its timelines, who may be a thousand and all behind, share a quarter of the connections, so that
        everybody else's requests find one (UD-52)."""

    async def page(self, principal: Principal, session_id: str, after: int, limit: int) -> bytes:
        """An EventPage's JSON. Bounded by `limit` and by 4 MiB, but always at least one event when there is one."""
        principal.require("sessions.read")
        records, state, more = await self._read(principal, session_id, after, limit, EVENTS_PAGE_BYTES)
        body = b",".join(record.body for record in records)
        following = records[-1].sequence if records else after
        tail = (
            f'],"next_after":{following},"has_more":{"true" if more else "false"},'
            f'"retained_after":{state["retained_after"]},"sealed":{"true" if state["sealed"] else "false"}}}'
        )
        return b'{"records":[' + body + tail.encode()

    async def follow(self, principal: Principal, session_id: str, after: int) -> AsyncIterator[list[StoredEvent]]:
        """Every event after `after`, in order, each once, until the Session is closed and sealed [E4].

        The first list comes at once, even empty; an empty one comes when 15 s passed without an event. Between events nothing is held
        but a bounded buffer.
        """
        principal.require("sessions.read")
        follower = self._core.hub.follow(session_id)
        try:
            cursor = after
            first = True
            while True:
                if follower.behind:
                    follower.behind = False
                    records, state, more = await self._read(principal, session_id, cursor, EVENTS_PAGE_MAX, _FOLLOW_BYTES, beyond=not first)
                    follower.behind = follower.behind or more
                    if records:
                        cursor = records[-1].sequence
                    if records or first:
                        yield records
                    first = False
                    if state["sealed"] and not more and not follower.behind:
                        return
                    continue
                batch = follower.take(cursor)
                if batch:
                    cursor = batch[-1].sequence
                    yield batch
                    continue
                if follower.behind:
                    continue
                if not await follower.wait(HEARTBEAT_SECONDS):
                    # A notice may have been lost (I6): look into the log, at the pace of the heartbeats.
                    follower.behind = True
                    yield []
        finally:
            self._core.hub.unfollow(session_id, follower)

    async def _read(
        self, principal: Principal, session_id: str, after: int, limit: int, size: int, *, beyond: bool = False
    ) -> tuple[list[StoredEvent], Any, bool]:
        state = None
        turn = self._reading.get(principal.environment_id)
        if turn is None:
            turn = self._reading[principal.environment_id] = asyncio.Semaphore(max(1, self._core.database.size // 4))
        async with turn, self._core.database.connection() as connection:
            if is_id(session_id):
                state = await events.timeline_state(connection, session_id=session_id, environment_id=principal.environment_id)
            if state is None:
                raise SessionNotFound()
            if principal.kind == "session":
                await session_of(connection, principal, session_id, "inspect_session")
            last = state["next_event"] - 1
            if after > last and not beyond:
                raise InvalidCursor(f"The timeline ends at {last}.")
            if after < state["retained_after"]:
                raise CursorExpired(retained_after=state["retained_after"])
            rows: Sequence[Any] = await events.events_after(connection, session_id=session_id, after=after, count=limit, bytes=size)
            if after < last and (not rows or rows[0]["sequence"] != after + 1):
                # The timeline has no gaps: what was there a moment ago has expired meanwhile [S22].
                state = await events.timeline_state(connection, session_id=session_id, environment_id=principal.environment_id)
                raise CursorExpired(retained_after=state["retained_after"])
        records = [
            render.event(
                session_id,
                None if row["turn_id"] is None else str(row["turn_id"]),
                row["sequence"],
                row["created_at"],
                row["kind"],
                row["data"],
            )
            for row in rows
        ]
        return records, state, bool(records) and records[-1].sequence < last
