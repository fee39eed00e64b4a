"""Pieces of transactions that stop Turns and end Sessions; the caller holds the Sessions' locks. SPEC [S11], [S18]-[S20], [E2]."""

from __future__ import annotations

from typing import Any

from helmr.control.domain.trees import Node
from helmr.control.domain.turns import lost_status
from helmr.control.service import render
from helmr.control.service.core import Effects, record
from helmr.control.store.pool import Connection
from helmr.control.store.queries import holds, messages, questions, sessions, turns
from helmr.protocol.ids import HoldId, new_id
from helmr.protocol.states import HoldKind, QuestionReason, StopCause

Entry = tuple[str | None, str, bytes]


def node_of(row: Any) -> Node:
    """A locked row as the rules see it."""
    return Node(
        id=row["id"],
        parent_id=row["parent_session_id"],
        status=row["status"],
        running=row["running_turn"] is not None,
        stopping=row["stop_cause"] is not None,
        queued=row["next_turn"] - 1 - row["claimed_turn"],
        held=row["held"],
    )


async def lock_tree(connection: Connection, root_session_id: Any) -> dict[Any, Any]:
    """The rows of a whole tree by id, locked in lock order, with none missing: a spawn locks its parent, so once nothing new is seen
    nothing new can come."""
    while True:
        rows = await sessions.lock_tree(connection, root_session_id=root_session_id)
        if await sessions.tree_size(connection, root_session_id=root_session_id) == len(rows):
            return {row["id"]: row for row in rows}


async def mark(connection: Connection, effects: Effects, session: Any, cause: StopCause, error: bytes | None = None) -> None:
    """Write a stop mark: from the commit on the Turn can't complete; its questions are cancelled [S11]."""
    await sessions.mark_stop(connection, id=session["id"], cause=cause, error=error)
    turn = str(session["running_turn"])
    entries: list[Entry] = [(turn, "turn.stopping", render.data(cause=cause))]
    entries += await cancel_questions(connection, session, "turn_stopping")
    await record(connection, effects, str(session["id"]), entries)
    effects.guests.add(str(session["id"]))


async def cancel_questions(connection: Connection, session: Any, reason: QuestionReason) -> list[Entry]:
    """Cancel the running Turn's pending questions; gives their events."""
    cancelled = await questions.cancel_questions(connection, turn_id=session["running_turn"], reason=reason)
    if not cancelled:
        return []
    await sessions.set_loose(connection, id=session["id"], change=-len(cancelled), last_op=0)
    turn = str(session["running_turn"])
    return [(turn, "question.cancelled", render.data(question_id=str(row["id"]), reason=reason)) for row in cancelled]


async def tie_up(connection: Connection, session: Any, *, by_itself: bool = False) -> list[Entry]:
    """End what a Turn leaves open, before its terminal event: messages are rejected, questions cancelled [E2], [Q4].

    A Turn that ends `by_itself` was closed to the messages that were still on their way to it [S10]; any other end cut them off.
    """
    turn = str(session["running_turn"])
    entries: list[Entry] = []
    if not session["loose"]:
        return entries
    for row in await messages.messages_open(connection, turn_id=session["running_turn"]):
        await messages.move_message(connection, id=row["id"], session_id=session["id"], status="rejected")
        started = row["status"] == "started"
        reason = "turn_closed" if by_itself and not started and session["stop_cause"] is None else "turn_terminated"
        data = render.data(message_id=str(row["id"]), reason=reason, delivery="uncertain" if started else "not_delivered")
        entries.append((turn, "message.rejected", data))
    for row in await questions.cancel_questions(connection, turn_id=session["running_turn"], reason="turn_terminated"):
        entries.append((turn, "question.cancelled", render.data(question_id=str(row["id"]), reason="turn_terminated")))
    await sessions.clear_loose(connection, id=session["id"])
    return entries


async def settle_lost(
    connection: Connection, effects: Effects, session: Any, *, strikes: int, code: str, details: dict[str, Any] | None = None
) -> None:
    """Settle the running Turn without its handler's word: under its mark, else interrupted with `code` [S11], [S14]."""
    cause = session["stop_cause"]
    status = lost_status(cause)
    entries = await tie_up(connection, session)
    turn = str(session["running_turn"])
    if cause is None:
        error: bytes | None = render.error(code, None, details)
        data = render.data(reason=code, code=code)
    elif status == "interrupted":
        error, data = None, render.data(reason=cause)
    else:
        data = session["stop_error"] or render.error("handler_failed")
        error = data
    await turns.end_running(connection, id=session["running_turn"], status=status, error=error)
    await sessions.clear_turn(connection, id=session["id"], strikes=strikes)
    entries.append((turn, f"turn.{status}", data))
    await record(connection, effects, str(session["id"]), entries)


async def cancel_running(connection: Connection, effects: Effects, session: Any) -> None:
    """The running Turn is cancelled now; whatever its process still says is refused [S11], [S19]."""
    entries = await tie_up(connection, session)
    await turns.end_running(connection, id=session["running_turn"], status="cancelled", error=None)
    await sessions.clear_turn(connection, id=session["id"], strikes=session["strikes"])
    entries.append((str(session["running_turn"]), "turn.cancelled", b"{}"))
    await record(connection, effects, str(session["id"]), entries)
    effects.guests.add(str(session["id"]))


async def cancel_queued(connection: Connection, effects: Effects, session_id: Any) -> None:
    """Everything queued is cancelled, in order."""
    gone = await turns.cancel_queued(connection, session_id=session_id)
    await sessions.skip_queue(connection, id=session_id)
    if gone:
        await record(connection, effects, str(session_id), [(str(row["id"]), "turn.cancelled", b"{}") for row in gone])


async def close(connection: Connection, effects: Effects, session_id: Any, reason: str) -> None:
    """The Session is closed now: no holds, its process ends [S20]."""
    await record(connection, effects, str(session_id), [(None, "session.closed", render.data(reason=reason))])
    await sessions.mark_closed(connection, id=session_id, reason=reason)
    await holds.release_holds_of(connection, session_id=session_id)
    effects.guests.add(str(session_id))


async def place_hold(
    connection: Connection,
    effects: Effects,
    session_id: Any,
    kind: HoldKind,
    reach: tuple[Any, ...],
    by: dict[str, str],
    *,
    hold_id: str | None = None,
    gap: dict[str, Any] | None = None,
) -> HoldId:
    """A new hold on one Session, which applies to `reach`. `gap`: which Turns a `recovery_gap` lost."""
    hold_id = HoldId(hold_id or new_id())
    await holds.insert_hold(
        connection,
        id=hold_id,
        session_id=session_id,
        kind=kind,
        placed_by=render.data(**by),
        recovery_gap=None if gap is None else render.data(**gap),
    )
    await sessions.add_hold_count(connection, ids=list(reach), change=1)
    await record(connection, effects, str(session_id), [(None, "session.held", render.data(hold_id=hold_id, kind=kind, recovery_gap=gap))])
    for other in reach:
        if other != session_id:
            await record(connection, effects, str(other), [(None, "session.held", render.data(kind=kind, inherited=True))])
    return hold_id
