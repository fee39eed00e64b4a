"""Turns: enqueue, read and wait, list, send a message, interrupt. SPEC [S4]-[S7], [S15]."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from helmr.control.service import render, stops
from helmr.control.service.asked import check_input
from helmr.control.service.authority import find_session, require_grant, session_of, turn_readable
from helmr.control.service.core import Core, Effects, check_key, record, retry_of
from helmr.control.service.principals import Principal
from helmr.control.service.reads import Reads
from helmr.control.service.reply import Reply
from helmr.control.store.flush import Admit, Flushed
from helmr.control.store.pool import Connection
from helmr.control.store.queries import messages, sessions, turns
from helmr.protocol import jsontext
from helmr.protocol.content import CONTENT_BYTES, input_content
from helmr.protocol.errors import (
    AdmissionUnavailable,
    ContentLimitExceeded,
    IdempotencyConflict,
    InvalidCursor,
    InvalidValue,
    MessageClosed,
    SessionNotFound,
    SessionNotOpen,
    TurnNotFound,
    TurnNotRunning,
    TurnStopping,
)
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.limits import EVENTS_PAGE_BYTES
from helmr.protocol.shapes import TurnPage, TurnState
from helmr.protocol.states import TERMINAL
from helmr.protocol.wire import from_wire

_LOOK_AGAIN_SECONDS: Final = 5.0
"""A notice of another control plane may be lost: a wait reads again after this (I6)."""


class Turns:
    def __init__(self, core: Core, reads: Reads) -> None:
        self._core = core
        self._reads = reads
        self._kinds: dict[str, tuple[str, str, str]] = {}

    async def enqueue(self, principal: Principal, session_id: str, input: Any, idempotency_key: str | None) -> Reply:
        """Admit a Turn at the end of the queue, also while one runs and while held [S6].

        Raises `SessionNotFound`, `SessionNotOpen`, `AdmissionUnavailable`, `IdempotencyConflict`, and what the input's check raises.
        """
        principal.require("sessions.send")
        if idempotency_key is not None:
            check_key(idempotency_key)
        kind, agent = await self._kind(principal, session_id)
        require_grant(principal, "enqueue", agent)
        turn_id = new_id()
        item = Admit(
            session_id=session_id,
            environment_id=principal.environment_id,
            turn_id=turn_id,
            input=check_input(kind, input),
            source=principal.source,
            principal_id=principal.id,
            by=principal.kind,
            key=idempotency_key,
            fingerprint=jsontext.fingerprint({"input": input}) if idempotency_key is not None else b"",
        )
        flushed = await self._core.batcher.submit(item)
        if flushed.outcome == "ok":
            reactor = self._core.reactor
            assert reactor is not None
            self._core.recent.put(turn_id, _admitted_row(item, flushed))
            reactor.admitted(item, flushed)
            body = f'{{"id":"{turn_id}","session_id":"{session_id}","sequence":{flushed.turn_sequence}}}'
            return Reply(body.encode())
        if flushed.outcome == "replay":
            assert flushed.data is not None
            return Reply(flushed.data, replayed=True)
        if flushed.outcome == "conflict":
            raise IdempotencyConflict()
        if flushed.outcome == "closed":
            raise SessionNotOpen()
        if flushed.outcome == "short":
            assert flushed.hint is not None
            raise AdmissionUnavailable(retry_after=float(flushed.hint))
        raise SessionNotFound()

    async def get(self, principal: Principal, session_id: str, turn_id: str, wait_seconds: float) -> bytes:
        """A TurnState's JSON: now, or once it settled, or after the wait. Holds no connection while it waits."""
        principal.require("sessions.read")
        if principal.kind == "session":
            await self._readable(principal, session_id, turn_id)
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_seconds
        row = self._core.recent.get(turn_id)
        while True:
            future = self._core.hub.expect(session_id, turn_id) if wait_seconds > 0 else None
            try:
                if row is None or (row["status"] not in TERMINAL and (future is None or loop.time() >= end)):
                    row = await self._reads.turn(turn_id) if is_id(turn_id) else None
                if row is None or str(row["session_id"]) != session_id or str(row["environment_id"]) != principal.environment_id:
                    await self._kind(principal, session_id)
                    raise TurnNotFound()
                if future is None or row["status"] in TERMINAL or loop.time() >= end:
                    return render.turn_state(row)
                timer = loop.call_at(min(end, loop.time() + _LOOK_AGAIN_SECONDS), _look_again, future)
                try:
                    members = await future
                finally:
                    timer.cancel()
                row = {**row, **members} if members is not None else None
            finally:
                if future is not None:
                    self._core.hub.forget(session_id, future)

    async def list(self, principal: Principal, session_id: str, cursor: str | None, limit: int) -> TurnPage:
        """Turns in admission order; a page has less than `limit` where their payloads are over 4 MiB together."""
        principal.require("sessions.read")
        after = _sequence_cursor(cursor)
        async with self._core.database.connection() as connection:
            session = await session_of(connection, principal, session_id, "inspect_turn")
            rows: Sequence[Any] = await turns.list_turns(
                connection, session_id=session_id, after=after, count=limit, bytes=EVENTS_PAGE_BYTES
            )
        items = tuple(from_wire(TurnState, jsontext.loads(render.turn_state(row))) for row in rows)
        more = bool(items) and items[-1].sequence < session["next_turn"] - 1
        return TurnPage(items=items, next_cursor=str(items[-1].sequence) if more else None)

    async def send(self, principal: Principal, session_id: str, turn_id: str, content: Any, idempotency_key: str | None) -> Reply:
        """A message to exactly this running Turn [S7]. Refused `message_closed` and stored nowhere when it takes none."""
        principal.require("sessions.send")
        if isinstance(content, str):
            raise InvalidValue("A message is a list of text parts, not a string.", hint='Send [{"type": "text", "text": "..."}].')
        parts = input_content(content)
        data = jsontext.dumps(parts)
        if len(data) > CONTENT_BYTES:
            raise ContentLimitExceeded(f"The message is {len(data)} bytes; at most {CONTENT_BYTES} are allowed.")
        retry = retry_of(principal, "turns.send", turn_id, idempotency_key, {"content": content})

        async def work(connection: Connection, effects: Effects) -> Reply:
            await session_of(connection, principal, session_id, "send_turn")
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            session = await sessions.lock_session(connection, id=session_id)
            await _turn_of(connection, session_id, turn_id)
            if str(session["running_turn"]) != turn_id or not session["accepting"] or session["stop_cause"] is not None:
                raise MessageClosed()
            message_id = new_id()
            await messages.insert_message(
                connection, id=message_id, session_id=session_id, turn_id=turn_id, content=data, source=principal.source
            )
            await sessions.set_loose(connection, id=session_id, change=1, last_op=0)
            event = b'{"message_id":"' + message_id.encode() + b'","content":' + data + b"}"
            await record(connection, effects, session_id, [(turn_id, "message.admitted", event)])
            effects.guests.add(session_id)
            return await retry.remember(connection, jsontext.dumps({"id": message_id, "status": "accepted"}), session_id)

        return await self._core.write("send", work)

    async def interrupt(self, principal: Principal, session_id: str, turn_id: str, idempotency_key: str | None) -> Reply:
        """Interrupt exactly this running Turn: a stop mark, no hold [S15]."""
        principal.require("sessions.interrupt")
        retry = retry_of(principal, "turns.interrupt", turn_id, idempotency_key, {})

        async def work(connection: Connection, effects: Effects) -> Reply:
            await session_of(connection, principal, session_id, "interrupt_turn")
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            session = await sessions.lock_session(connection, id=session_id)
            await _turn_of(connection, session_id, turn_id)
            if str(session["running_turn"]) != turn_id:
                raise TurnNotRunning()
            if session["stop_cause"] is not None:
                raise TurnStopping()
            await stops.mark(connection, effects, session, "turn_interrupted")
            receipt = {"id": new_id(), "session_id": session_id, "turn_id": turn_id, "status": "accepted"}
            return await retry.remember(connection, jsontext.dumps(receipt), session_id)

        return await self._core.write("interrupt_turn", work)

    async def _readable(self, principal: Principal, session_id: str, turn_id: str) -> None:
        async with self._core.database.connection() as connection:
            turn = await turns.turn_row(connection, id=turn_id) if is_id(turn_id) else None
            of_session = turn is not None and str(turn["session_id"]) == session_id
            await turn_readable(connection, principal, session_id, turn if of_session else None)

    async def _kind(self, principal: Principal, session_id: str) -> tuple[str, str]:
        """What kind of input the Session's Agent takes, and the Agent; they never change, so they are remembered."""
        found = self._kinds.get(session_id)
        if found is not None and found[0] == principal.environment_id:
            return found[1], found[2]
        async with self._core.database.connection() as connection:
            row = await find_session(connection, principal.environment_id, session_id)
        if len(self._kinds) > 50_000:
            self._kinds.clear()
        self._kinds[session_id] = (principal.environment_id, row["input_kind"], row["agent"])
        return row["input_kind"], row["agent"]


def _admitted_row(item: Admit, flushed: Flushed) -> dict[str, Any]:
    """The row of a Turn as its admission wrote it."""
    running = flushed.next_turn is not None
    empty = dict.fromkeys(("result", "response", "error", "terminal_at", "payload_expired_at"))
    return {
        **empty,
        "id": item.turn_id,
        "session_id": item.session_id,
        "environment_id": item.environment_id,
        "sequence": flushed.turn_sequence,
        "status": "running" if running else "queued",
        "source": item.source,
        "input": item.input,
        "created_at": flushed.at,
        "started_at": flushed.at if running else None,
    }


def _look_again(future: asyncio.Future[dict[str, Any] | None]) -> None:
    if not future.done():
        future.set_result(None)


async def _turn_of(connection: Connection, session_id: str, turn_id: str) -> Any:
    row = await turns.turn_row(connection, id=turn_id) if is_id(turn_id) else None
    if row is None or str(row["session_id"]) != session_id:
        raise TurnNotFound()
    return row


def _sequence_cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 16:
        raise InvalidCursor()
    return int(cursor)
