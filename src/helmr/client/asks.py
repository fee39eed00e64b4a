"""`TurnRef.asks`: what a Turn asks people, and their answers. SPEC [Q3]-[Q5]."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.questions import Answer
from helmr.protocol.shapes import QuestionPage, QuestionReceipt, QuestionState
from helmr.protocol.states import QuestionStatus

StatusFilter = QuestionStatus | Sequence[QuestionStatus] | None


class TurnAsks:
    """The questions of one Turn."""

    __slots__ = ("_session_id", "_transport", "_turn_id")

    def __init__(self, transport: Transport, session_id: str, turn_id: str) -> None:
        self._transport = transport
        self._session_id = session_id
        self._turn_id = turn_id

    async def list(self, *, status: StatusFilter = None, cursor: str | None = None, limit: int | None = None) -> QuestionPage:
        """A page of the Turn's questions in the order in which they were asked; `limit` 1-100, 50 when omitted."""
        query = {"status": statuses(status), "cursor": cursor, "limit": limit}
        return read(QuestionPage, await self._transport.call("GET", self._path(), query=query))

    async def get(self, id: str) -> QuestionState:
        """A question now. Raises `QuestionNotFound`."""
        return read(QuestionState, await self._transport.call("GET", self._path(f"/{segment(id)}")))

    async def respond(
        self, id: str, answer: Answer, *, response_id: str | None = None, idempotency_key: str | None = None
    ) -> QuestionReceipt:
        """Answer a pending question; the first answer stands [Q3].

        `response_id` names this one act of answering: given again with the same answer it gets the same receipt. Without one the call
        makes its own, which its transport retries keep. `text_answer` and `choice_answer` make answers.

        Raises `AnswerInvalid`, `QuestionAlreadyResponded`, `QuestionCancelled`.
        """
        body = {"answer": answer, "response_id": str(uuid.uuid4()) if response_id is None else response_id}
        return read(QuestionReceipt, await self._transport.write(self._path(f"/{segment(id)}/response"), body, idempotency_key))

    def _path(self, rest: str = "") -> str:
        return f"/v1/sessions/{segment(self._session_id)}/turns/{segment(self._turn_id)}/questions{rest}"


def statuses(status: StatusFilter) -> list[QuestionStatus]:
    """A filter as it stands in a query: each status once, none for all."""
    if status is None:
        return []
    return [status] if isinstance(status, str) else list(status)
