"""Controls of a Session: interrupt, resume, close, cancel. SPEC [S16]-[S21].

Receipts confirm acceptance, not that processes ended. Each is one transaction over the locked tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from helmr.control.domain.delegation import may_release
from helmr.control.domain.trees import Change, decide_cancel, decide_close, decide_finish, decide_interrupt, hold_reaches, subtree
from helmr.control.service import render, stops
from helmr.control.service.authority import session_of
from helmr.control.service.core import Core, Effects, record, retry_of
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import holds, sessions
from helmr.protocol import jsontext
from helmr.protocol.errors import Forbidden, HoldNotFound, HoldNotReleasable, SessionNotOpen
from helmr.protocol.ids import is_id, new_id


class Controls:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def interrupt(self, principal: Principal, session_id: str, idempotency_key: str | None) -> Reply:
        """Mark what runs in the owned tree and hold it; also valid when nothing runs [S16]."""
        principal.require("sessions.interrupt")

        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await session_of(connection, principal, session_id, "interrupt_session")
            retry = retry_of(principal, "sessions.interrupt", session_id, idempotency_key, {})
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            rows = await stops.lock_tree(connection, row["root_session_id"])
            target = row["id"]
            if rows[target]["status"] != "open":
                raise SessionNotOpen("Only an open Session can be interrupted.")
            change = decide_interrupt([stops.node_of(other) for other in rows.values()], target)
            control_id = new_id()
            hold_id = await self._interrupt(connection, effects, principal, rows, target, control_id, change)
            receipt = {"id": control_id, "session_id": session_id, "status": "accepted", "hold_id": hold_id}
            return await retry.remember(connection, jsontext.dumps(receipt), session_id)

        return await self._core.write("interrupt_session", work)

    async def resume(self, principal: Principal, session_id: str, hold_id: str, idempotency_key: str | None) -> Reply:
        """Release exactly one hold, on its own Session [S17].

        Raises `HoldNotFound` for one that is unknown, released or another Session's, `HoldNotReleasable`, and `Forbidden` for a Session
        that isn't the parent, or did not place this interrupt.
        """
        principal.require("sessions.resume")

        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await session_of(connection, principal, session_id, "resume_session")
            retry = retry_of(principal, "sessions.resume", session_id, idempotency_key, {"hold_id": hold_id})
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            rows = await stops.lock_tree(connection, row["root_session_id"])
            hold = await holds.hold_in_force(connection, id=hold_id, session_id=session_id) if is_id(hold_id) else None
            if hold is None:
                raise HoldNotFound()
            if hold["kind"] == "storage_pressure":
                raise HoldNotReleasable()
            placed_by_caller = jsontext.loads(hold["placed_by"]) == principal.by
            if principal.kind == "session" and not may_release(hold["kind"], parent=True, placed_by_caller=placed_by_caller):
                raise Forbidden("A Session releases only those interrupts that it placed itself.")
            reach = hold_reaches([stops.node_of(other) for other in rows.values()], row["id"], hold["kind"])
            await holds.release_hold(connection, id=hold_id)
            await sessions.add_hold_count(connection, ids=list(reach), change=-1)
            if hold["kind"] == "process_failed":
                await sessions.forgive(connection, id=session_id)
            control_id = new_id()
            data = render.data(control_id=control_id, hold_id=hold_id, by=principal.by)
            await record(connection, effects, session_id, [(None, "session.resume", data)])
            for other in reach:
                effects.places.add(str(other))
                effects.claims.add(str(other))
            receipt = {"id": control_id, "session_id": session_id, "status": "accepted", "hold_id": hold_id}
            return await retry.remember(connection, jsontext.dumps(receipt), session_id)

        return await self._core.write("resume", work)

    async def close(self, principal: Principal, session_id: str, idempotency_key: str | None) -> Reply:
        """Refuse new Turns in the owned tree and drain what can run [S18]. Changes nothing on a closing or closed Session [S20]."""
        principal.require("sessions.close")
        return await self._end(principal, session_id, idempotency_key, "close")

    async def cancel(self, principal: Principal, session_id: str, idempotency_key: str | None) -> Reply:
        """Cancel what runs and what is queued in the owned tree, and close it at once [S19]."""
        principal.require("sessions.cancel")
        return await self._end(principal, session_id, idempotency_key, "cancel")

    async def close_idle(self, session_id: str) -> bool:
        """Close a Session that is idle with all it owns for its period, derived again under the locks [S21]; False when it isn't now."""

        async def work(connection: Connection, effects: Effects) -> bool:
            row = await sessions.session_row(connection, id=session_id)
            if row is None:
                return False
            rows = await stops.lock_tree(connection, row["root_session_id"])
            session = rows[row["id"]]
            if session["status"] != "open" or not await self._idle_over(connection, rows, row["id"]):
                return False
            await self._apply_close(connection, effects, rows, row["id"], "idle", None)
            return True

        return await self._core.write("close_idle", work)

    async def finish(self, root_session_id: str) -> None:
        """Close the closing Sessions of a tree that have nothing left [S18]; also cancels what holds came to block."""

        async def work(connection: Connection, effects: Effects) -> None:
            rows = await stops.lock_tree(connection, root_session_id)
            for row in rows.values():
                if row["status"] == "closing" and row["held"] and row["next_turn"] - 1 > row["claimed_turn"]:
                    await stops.cancel_queued(connection, effects, row["id"])
            rows = await stops.lock_tree(connection, root_session_id)
            for session_id in decide_finish([stops.node_of(row) for row in rows.values()]):
                await stops.close(connection, effects, session_id, rows[session_id]["close_reason"])

        await self._core.write("finish_close", work)

    async def _end(self, principal: Principal, session_id: str, key: str | None, how: Literal["close", "cancel"]) -> Reply:
        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await session_of(connection, principal, session_id, "close_session" if how == "close" else "cancel_session")
            retry = retry_of(principal, f"sessions.{how}", session_id, key, {})
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            rows = await stops.lock_tree(connection, row["root_session_id"])
            control = {"control_id": new_id(), "by": principal.by}
            if how == "close":
                change = await self._apply_close(connection, effects, rows, row["id"], "close", control)
            else:
                change = await self._apply_cancel(connection, effects, rows, row["id"], control)
            return await retry.remember(connection, jsontext.dumps({"session_id": session_id, "status": change.status}), session_id)

        return await self._core.write(how, work)

    async def _apply_close(
        self,
        connection: Connection,
        effects: Effects,
        rows: Mapping[Any, Any],
        target: Any,
        reason: str,
        control: dict[str, Any] | None,
    ) -> Change:
        change = decide_close([stops.node_of(row) for row in rows.values()], target)
        if not change.changed:
            return change
        if control is not None:
            await record(connection, effects, str(target), [(None, "session.close", render.data(**control))])
        await sessions.begin_closing(connection, ids=list(change.closing), reason=reason)
        for session_id in change.questions:
            entries = await stops.cancel_questions(connection, rows[session_id], "session_closing")
            if entries:
                await record(connection, effects, str(session_id), entries)
                effects.guests.add(str(session_id))
        for session_id in change.cancel_queued:
            await stops.cancel_queued(connection, effects, session_id)
        for session_id in change.closed:
            closing = rows[session_id]
            await stops.close(connection, effects, session_id, closing["close_reason"] or reason)
        await self._finish_above(connection, effects, rows, change)
        return change

    async def _apply_cancel(
        self, connection: Connection, effects: Effects, rows: Mapping[Any, Any], target: Any, control: dict[str, Any]
    ) -> Change:
        change = decide_cancel([stops.node_of(row) for row in rows.values()], target)
        if not change.changed:
            return change
        await record(connection, effects, str(target), [(None, "session.cancel", render.data(**control))])
        for session_id in change.closed:
            if session_id in change.cancel_running:
                await stops.cancel_running(connection, effects, rows[session_id])
            if session_id in change.cancel_queued:
                await stops.cancel_queued(connection, effects, session_id)
            await stops.close(connection, effects, session_id, "cancel")
        await self._finish_above(connection, effects, rows, change)
        return change

    async def _finish_above(self, connection: Connection, effects: Effects, rows: Mapping[Any, Any], change: Change) -> None:
        """A closing parent whose last child closed now may close too."""
        if not change.closed or all(rows[session_id]["parent_session_id"] is None for session_id in change.closed):
            return
        again = await stops.lock_tree(connection, next(iter(rows.values()))["root_session_id"])
        for session_id in decide_finish([stops.node_of(row) for row in again.values()]):
            await stops.close(connection, effects, session_id, again[session_id]["close_reason"])

    async def _interrupt(
        self,
        connection: Connection,
        effects: Effects,
        principal: Principal,
        rows: Mapping[Any, Any],
        target: Any,
        control_id: str,
        change: Change,
    ) -> str:
        hold_id = new_id()
        data = render.data(control_id=control_id, hold_id=hold_id, by=principal.by)
        await record(connection, effects, str(target), [(None, "session.interrupt", data)])
        await stops.place_hold(connection, effects, target, "interrupt", change.holds, principal.by, hold_id=hold_id)
        for session_id in change.marks:
            await stops.mark(connection, effects, rows[session_id], "session_interrupted")
        for session_id in change.cancel_queued:
            await stops.cancel_queued(connection, effects, session_id)
        for session_id in change.closed:
            await stops.close(connection, effects, session_id, rows[session_id]["close_reason"])
        return hold_id

    async def _idle_over(self, connection: Connection, rows: Mapping[Any, Any], target: Any) -> bool:
        session = rows[target]
        tree = [rows[node.id] for node in subtree([stops.node_of(row) for row in rows.values()], target)]
        owned = [row for row in tree if row["status"] != "closed"]
        if any(row["idle_at"] is None for row in owned):
            return False
        since = max(row["idle_at"] for row in owned)
        now = await sessions.now(connection)
        return (now - since).total_seconds() * 1000 >= session["close_after_idle_ms"]
