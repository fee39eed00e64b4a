"""The end of what was said in closed Sessions, by request and by age, and of old receipts. SPEC [S22], [S4].

Inputs, results, responses, messages of errors, message bodies, prompts and answers go, and the events with them; Turns, messages and
questions stay with ids, statuses, times and codes. It is decided in one commit and done in bounded ones: a Turn says `payload_expired_at`
from the commit that takes its payload, the timeline `retained_after` from the one that takes its events. A crash between two of them loses
nothing and leaves the rest to the duty.
"""

from __future__ import annotations

from typing import Any, Final

from helmr.control.domain.retention import expired_error
from helmr.control.service import render
from helmr.control.service.authority import session_of
from helmr.control.service.core import Core, Effects, retry_of
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import retention, sessions
from helmr.protocol import jsontext
from helmr.protocol.errors import SessionNotClosed

TURNS: Final = 500
EVENTS: Final = 5_000
"""The most that one commit takes away."""

RECEIPT_DAYS: Final = 30
"""How long receipts are kept at least, also of closed Sessions [S4]."""


class Retention:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def delete_data(self, principal: Principal, session_id: str, idempotency_key: str | None) -> Reply:
        """Take away now what was said in a closed Session; it can't be undone. Raises `SessionNotClosed`, `SessionNotFound`.

        Needs `sessions.cancel`: who may end a Session for good. Of one whose process is still being ended the events go once it is
        sealed, so that whoever follows it reads the end.
        """
        principal.require("sessions.cancel")

        async def work(connection: Connection, effects: Effects) -> Reply:
            await session_of(connection, principal, session_id)
            retry = retry_of(principal, "sessions.delete_data", session_id, idempotency_key, {})
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            await sessions.lock_session(connection, id=session_id)
            at = await retention.begin_expiry(connection, id=session_id)
            if at is None:
                raise SessionNotClosed()
            receipt = {"session_id": session_id, "payload_expired_at": render.time_text(at)}
            return await retry.remember(connection, jsontext.dumps(receipt), session_id)

        reply = await self._core.write("delete_data", work)
        await self._expire(session_id)
        return reply

    async def expire_due(self, count: int) -> bool:
        """Take away what retention ends, and what an earlier run left, of up to `count` Sessions; whether there may be more."""
        async with self._core.database.connection() as connection:
            rows: list[Any] = await retention.sessions_expiring(connection, count=count)
            if len(rows) < count:
                rows += await retention.sessions_to_expire(connection, count=count - len(rows))
        for row in rows:
            await self._begin(str(row["id"]))
            await self._expire(str(row["id"]))
        return len(rows) == count

    async def forget_receipts(self, count: int) -> bool:
        """Forget up to `count` receipts that are old enough; whether there may be more."""

        async def work(connection: Connection) -> int:
            return await retention.forget_receipts(connection, days=RECEIPT_DAYS, count=count)

        return await self._core.database.run(work) == count

    async def _begin(self, session_id: str) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            await retention.begin_expiry(connection, id=session_id)

        await self._core.write("begin_expiry", work)

    async def _expire(self, session_id: str) -> None:
        """Take away all that can go by now."""
        while await self._core.write("expire", lambda connection, effects: _expire_some(connection, effects, session_id)):
            pass


async def _expire_some(connection: Connection, effects: Effects, session_id: str) -> bool:
    """A bounded piece of a Session whose expiry has begun; whether more can go now."""
    session = await sessions.lock_session(connection, id=session_id)
    if session["payload_expired_at"] is None or session["expired"]:
        return False
    effects.touched.add(session_id)
    rows = await retention.turns_to_expire(connection, session_id=session_id, count=TURNS)
    if rows:
        ids = [row["id"] for row in rows]
        errors = [None if row["error"] is None else expired_error(row["error"]) for row in rows]
        await retention.expire_messages(connection, turn_ids=ids)
        await retention.expire_questions(connection, turn_ids=ids)
        await retention.expire_turns(connection, ids=ids, errors=errors, at=session["payload_expired_at"])
        return True
    return bool(session["sealed"]) and not await retention.expire_events(connection, id=session_id, count=EVENTS)
