"""Questions to people: read, listed, answered. SPEC [Q1]-[Q5], [S11].

What a Turn asks comes in by `guest_ops`, and what ends a question without an answer is in `stops`; both hold the Session's lock, as an
answer does: of two that come at once one is first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.authority import session_of
from helmr.control.service.core import Core, Effects, record, retry_of
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import questions, sessions, turns
from helmr.protocol import jsontext
from helmr.protocol.errors import AnswerInvalid, Forbidden, QuestionAlreadyResponded, QuestionCancelled, QuestionNotFound, TurnNotFound
from helmr.protocol.ids import is_id
from helmr.protocol.limits import EVENTS_PAGE_BYTES
from helmr.protocol.questions import check_answer, check_response_id
from helmr.protocol.states import QuestionStatus


class Questions:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def get(self, principal: Principal, session_id: str, turn_id: str, question_id: str) -> bytes:
        """A QuestionState's JSON. Raises `SessionNotFound`, `TurnNotFound`, `QuestionNotFound`."""
        principal.require("sessions.read")
        async with self._core.database.connection() as connection:
            await session_of(connection, principal, session_id)
            return render.question_state(await _question_of(connection, session_id, turn_id, question_id))

    async def find(self, principal: Principal, question_id: str) -> bytes:
        """The same for a question of the Environment of which only the id is known."""
        _person(principal)
        async with self._core.database.connection() as connection:
            row = await questions.question_row(connection, id=question_id) if is_id(question_id) else None
        if row is None or str(row["environment_id"]) != principal.environment_id:
            raise QuestionNotFound()
        return render.question_state(row)

    async def list(
        self, principal: Principal, session_id: str, turn_id: str, status: Sequence[QuestionStatus], cursor: str | None, limit: int
    ) -> bytes:
        """A QuestionPage's JSON: what the Turn asked, in that order; with a status, only those of it."""
        principal.require("sessions.read")
        after = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            await session_of(connection, principal, session_id)
            await _turn_of(connection, session_id, turn_id)
            rows = await questions.list_turn_questions(
                connection, turn_id=turn_id, statuses=list(status) or None, after=after, count=limit, bytes=EVENTS_PAGE_BYTES
            )
        return _page(rows)

    async def of_environment(self, principal: Principal, status: Sequence[QuestionStatus], cursor: str | None, limit: int) -> bytes:
        """A QuestionPage's JSON: the Environment's questions, the oldest first; with a status, only those of it [Q5]."""
        _person(principal)
        asked: dict[str, Any] = {"environment_id": principal.environment_id, "count": limit, "bytes": EVENTS_PAGE_BYTES}
        asked["after"] = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            if set(status) == {"pending"}:
                rows = await questions.list_pending_questions(connection, **asked)
            else:
                rows = await questions.list_questions(connection, statuses=list(status) or None, **asked)
        return _page(rows)

    async def respond(
        self,
        principal: Principal,
        session_id: str,
        turn_id: str,
        question_id: str,
        answer: Any,
        response_id: str,
        idempotency_key: str | None,
    ) -> Reply:
        """Answer a pending question; the first answer stands [Q3]. A Session never answers [Q4].

        The same `response_id` with the same answer gives the same receipt, whatever became of the Turn since. Raises
        `QuestionAlreadyResponded`, `QuestionCancelled`, `AnswerInvalid`, and what reading it raises; a refusal changes nothing.
        """
        if principal.kind == "session":
            raise Forbidden("A Session answers no question; people do.")
        principal.require("questions.respond")
        check_response_id(response_id)
        request = {"answer": answer, "response_id": response_id}
        retry = retry_of(principal, "questions.respond", question_id, idempotency_key, request)

        async def work(connection: Connection, effects: Effects) -> Reply:
            await session_of(connection, principal, session_id)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            await sessions.lock_session(connection, id=session_id)
            question = await _question_of(connection, session_id, turn_id, question_id)
            if question["status"] == "cancelled":
                raise QuestionCancelled(reason=question["reason"])
            if question["status"] == "responded":
                if question["response_id"] != response_id or not _same_answer(question, answer):
                    raise QuestionAlreadyResponded()
                return Reply((await retry.remember(connection, _receipt(question), session_id, done=False)).body, replayed=True)
            _, data = check_answer(jsontext.loads(question["question"]), answer)
            by = render.data(**principal.by)
            settled = await questions.respond_question(connection, id=question_id, answer=data, response_id=response_id, responded_by=by)
            await sessions.set_loose(connection, id=session_id, change=-1, last_op=0)
            event = b"".join((b'{"question_id":"', question_id.encode(), b'","answer":', data, b',"responded_by":', by, b"}"))
            await record(connection, effects, session_id, [(turn_id, "question.responded", event)])
            effects.guests.add(session_id)
            found = {**question, "responded_by": by, "response_id": response_id, "settled_at": settled["settled_at"]}
            return await retry.remember(connection, _receipt(found), session_id)

        return await self._core.write("respond", work)


def _person(principal: Principal) -> None:
    """Questions are people's: a Session reads none of them, whatever its standing."""
    if principal.kind == "session":
        raise Forbidden("A Session may not do this.")
    principal.require("sessions.read")


def _same_answer(question: Any, answer: Any) -> bool:
    """Whether `answer` is what was answered. Never once the payload has expired: nothing is left to compare."""
    if question["question"] is None or question["answer"] is None:
        return False
    try:
        _, data = check_answer(jsontext.loads(question["question"]), answer)
    except AnswerInvalid:
        return False
    return data == bytes(question["answer"])


def _receipt(question: Any) -> bytes:
    """A QuestionReceipt's JSON: made of the row, so that it is the same each time."""
    head = {
        "id": str(question["id"]),
        "session_id": str(question["session_id"]),
        "turn_id": str(question["turn_id"]),
        "status": "responded",
        "response_id": question["response_id"],
        "responded_at": render.time_text(question["settled_at"]),
    }
    return jsontext.dumps(head)[:-1] + b',"responded_by":' + question["responded_by"] + b"}"


async def _turn_of(connection: Connection, session_id: str, turn_id: str) -> None:
    row = await turns.turn_row(connection, id=turn_id) if is_id(turn_id) else None
    if row is None or str(row["session_id"]) != session_id:
        raise TurnNotFound()


async def _question_of(connection: Connection, session_id: str, turn_id: str, question_id: str) -> Any:
    """The row of a question of this Turn of this Session."""
    await _turn_of(connection, session_id, turn_id)
    row = await questions.question_row(connection, id=question_id) if is_id(question_id) else None
    if row is None or str(row["turn_id"]) != turn_id:
        raise QuestionNotFound()
    return row


def _page(rows: Sequence[Any]) -> bytes:
    following = encode_cursor(str(rows[-1]["id"])) if rows and rows[-1]["more"] else None
    items = b",".join(render.question_state(row) for row in rows)
    return b"".join((b'{"items":[', items, b'],"next_cursor":', jsontext.dumps(following), b"}"))
