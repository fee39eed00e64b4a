"""What Session processes say that is not hot: one small transaction each, checked against epoch and operation number (I4).

`init`, stop marks of the guest, messages, questions. SPEC [S7], [S9], [S11], [S13], [Q1]-[Q4].
"""

from __future__ import annotations

from typing import Any, Literal

from helmr.control.domain.redaction import Redactor
from helmr.control.service import frames_up, render, stops
from helmr.control.service.core import Core, Effects, record
from helmr.control.service.frames_up import FrameRefused, Up
from helmr.control.service.guests import Guest
from helmr.control.store.pool import Connection
from helmr.control.store.queries import messages, processes, questions, sessions
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.limits import TURN_OUTPUT_BYTES

Verdict = Literal["done", "init_failed", "undrained"]


async def apply(core: Core, guest: Guest, op: int, frame: Up) -> Verdict:
    """Store one operation. A repeated or outdated one changes nothing. Raises `FrameRefused` when it breaks the protocol.

    `init_failed` and `undrained` store nothing, not even the operation's number: what follows from them is a transaction of its own, and
    until that is stored the operation must be heard again, from here or from the process (I6).
    """

    async def work(connection: Connection, effects: Effects) -> Verdict:
        session = await sessions.lock_session(connection, id=guest.session_id)
        if session is None or session["channel"] != guest.number or op <= session["last_op"] or session["process"] == "none":
            return "done"
        if frame.t == "init.done":
            return await _init_done(connection, effects, session, op)
        if frame.t == "init.failed":
            return "init_failed"
        if frame.t == "turn.undrained" and _of_running_turn(session, frame):
            return "undrained"
        await sessions.set_last_op(connection, id=guest.session_id, last_op=op)
        if frame.t in ("message.started", "message.delivered", "message.rejected"):
            return await _message(connection, effects, session, frame)
        if not _of_running_turn(session, frame):
            return "done"
        if frame.t == "turn.stopping":
            return await _stopping(connection, effects, session, frame, guest.seat.handed.redactor)
        if frame.t in ("messages.open", "messages.closed"):
            opens = frame.t == "messages.open" and session["stop_cause"] is None
            await sessions.set_accepting(connection, id=guest.session_id, accepting=opens, last_op=op)
            return "done"
        if frame.t == "question.ask":
            return await _ask(connection, effects, session, guest, op, frame)
        if frame.t == "question.withdraw":
            return await _withdraw(connection, effects, session, frame)
        raise FrameRefused(f"no frame is called {frame.t[:40]!r}")

    verdict = await core.write(frame.t, work)
    if frame.t == "question.ask":
        guest.output_bytes += len(bytes(frame.question))
        guest.asks(op)
    return verdict


def _of_running_turn(session: Any, frame: Up) -> bool:
    """A frame without a Turn is of whichever runs."""
    return session["running_turn"] is not None and frame.turn in ("", str(session["running_turn"]))


async def _init_done(connection: Connection, effects: Effects, session: Any, op: int) -> Verdict:
    if session["process"] != "starting":
        return "done"
    await processes.process_ready(connection, id=session["id"], last_op=op)
    kind = "reconstructed" if session["initialised"] else "initial"
    data = render.data(
        attempt=session["attempt"], recovery_kind=kind, reason=session["recovery_reason"] if kind == "reconstructed" else None
    )
    await record(connection, effects, str(session["id"]), [(None, "session.process_started", data)])
    effects.claims.add(str(session["id"]))
    return "done"


async def _stopping(connection: Connection, effects: Effects, session: Any, frame: Up, redactor: Redactor) -> Verdict:
    """A stop mark that the guest makes: its handler, or its message callback, failed. The first mark stands [S11]."""
    if session["stop_cause"] is not None:
        return "done"
    if frame.cause not in ("handler_failed", "message_handler_failed"):
        raise FrameRefused("a guest marks only its own failures")
    found = frames_up.error(frame.error, redactor)
    await stops.mark(connection, effects, session, frame.cause, found[0] if found else render.error(frame.cause))
    return "done"


async def _message(connection: Connection, effects: Effects, session: Any, frame: Up) -> Verdict:
    status = frame.t.partition(".")[2]
    if not is_id(frame.id):
        raise FrameRefused("a message has no such id")
    moved = await messages.move_message(connection, id=frame.id, session_id=session["id"], status=status)
    if moved is None:
        return "done"
    members: dict[str, Any] = {"message_id": frame.id}
    if status == "rejected":
        if frame.reason not in ("message_rejected", "callback_failed", "turn_closed", "turn_terminated"):
            raise FrameRefused("a message is rejected for no known reason")
        members["reason"] = frame.reason
        members["delivery"] = "uncertain" if moved["before"] == "started" and frame.reason != "message_rejected" else "not_delivered"
        members["detail"] = frame.detail[:4000] or None
    if status != "started":
        await sessions.set_loose(connection, id=session["id"], change=-1, last_op=0)
    await record(connection, effects, str(session["id"]), [(str(moved["turn_id"]), frame.t, render.data(**members))])
    return "done"


async def _ask(connection: Connection, effects: Effects, session: Any, guest: Guest, op: int, frame: Up) -> Verdict:
    """Store a question before it is shown [Q3]. While closing or stopping it is cancelled at once [S18]."""
    if session["parent_session_id"] is not None:
        raise FrameRefused("an owned Session asks nobody")
    question = frames_up.question(frame.question)
    if session["output_bytes"] + len(question) > TURN_OUTPUT_BYTES:
        raise FrameRefused("the Turn's output and questions are over 8 MiB")
    question_id = new_id()
    turn = str(session["running_turn"])
    await questions.insert_question(
        connection,
        id=question_id,
        environment_id=session["environment_id"],
        session_id=session["id"],
        turn_id=turn,
        channel=guest.number,
        op=op,
        question=question,
    )
    await sessions.count_asked(connection, id=session["id"], size=len(question))
    data = b'{"question_id":"' + question_id.encode() + b'","question":' + question + b"}"
    await record(connection, effects, str(session["id"]), [(turn, "question.asked", data)])
    if session["stop_cause"] is not None or session["status"] != "open":
        reason = "turn_stopping" if session["stop_cause"] is not None else "session_closing"
        await record(connection, effects, str(session["id"]), await stops.cancel_questions(connection, session, reason))
        effects.guests.add(str(session["id"]))
    return "done"


async def _withdraw(connection: Connection, effects: Effects, session: Any, frame: Up) -> Verdict:
    row = await questions.cancel_question(connection, turn_id=session["running_turn"], op=frame.ask, reason="withdrawn")
    if row is not None:
        await sessions.set_loose(connection, id=session["id"], change=-1, last_op=0)
        data = render.data(question_id=str(row["id"]), reason="withdrawn")
        await record(connection, effects, str(session["id"]), [(str(session["running_turn"]), "question.cancelled", data)])
    return "done"
