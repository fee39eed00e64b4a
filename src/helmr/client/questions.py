"""`client.questions`: what all Sessions of the Environment ask people. SPEC 12, [Q5]."""

from __future__ import annotations

from helmr.client.asks import StatusFilter, TurnAsks, statuses
from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.questions import Answer
from helmr.protocol.shapes import QuestionPage, QuestionReceipt, QuestionState


class Questions:
    """Questions by their own ids, whatever Session asked them."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, *, status: StatusFilter = "pending", cursor: str | None = None, limit: int | None = None) -> QuestionPage:
        """A page of the Environment's questions, the oldest first: those that wait for an answer, or with `status=None` all of them."""
        query = {"status": statuses(status), "cursor": cursor, "limit": limit}
        return read(QuestionPage, await self._transport.call("GET", "/v1/questions", query=query))

    async def get(self, id: str) -> QuestionState:
        """A question now. Raises `QuestionNotFound`."""
        return read(QuestionState, await self._transport.call("GET", f"/v1/questions/{segment(id)}"))

    async def respond(
        self, id: str, answer: Answer, *, response_id: str | None = None, idempotency_key: str | None = None
    ) -> QuestionReceipt:
        """Answer a pending question like `TurnRef.asks.respond`, after a look at whose it is."""
        found = await self.get(id)
        asks = TurnAsks(self._transport, found.session_id, found.turn_id)
        return await asks.respond(id, answer, response_id=response_id, idempotency_key=idempotency_key)
