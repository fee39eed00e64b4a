"""A handle on one Turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, overload

from helmr.client.asks import TurnAsks
from helmr.client.outcome import TimedTurnWaitResult, TurnOutcome, TurnSettled, TurnWaitTimeout, outcome_of
from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.content import InputContent, input_content
from helmr.protocol.duration import Duration, duration_ms
from helmr.protocol.ids import SessionId, TurnId
from helmr.protocol.shapes import MessageReceipt, TurnInterruptReceipt, TurnState

R_co = TypeVar("R_co", covariant=True)

POLL_SECONDS = 30.0
"""How long one request of `wait` stays open on the server."""
_SLACK_SECONDS = 15.0


class TurnRef(Generic[R_co]):
    """A Turn by its ids; making one sends nothing. `sequence` is known when it came from a receipt."""

    __slots__ = ("_decode", "_transport", "asks", "id", "sequence", "session_id")

    def __init__(
        self, transport: Transport, session_id: str, turn_id: str, *, decode: Callable[[Any], Awaitable[R_co]], sequence: int | None = None
    ) -> None:
        self._transport = transport
        self._decode = decode
        self.session_id = SessionId(session_id)
        self.id = TurnId(turn_id)
        self.sequence = sequence
        self.asks = TurnAsks(transport, session_id, turn_id)

    def __repr__(self) -> str:
        return f"TurnRef({self.id})"

    async def get(self) -> TurnState:
        """The Turn now."""
        return await self._poll(None)

    @overload
    async def wait(self) -> TurnOutcome[R_co]: ...
    @overload
    async def wait(self, *, timeout: Duration) -> TimedTurnWaitResult[R_co]: ...
    async def wait(self, *, timeout: Duration | None = None) -> TurnOutcome[R_co] | TimedTurnWaitResult[R_co]:
        """The outcome, once there is one. With a `timeout`, whether it came in time: the end of the time never cancels the Turn.

        Waiting outlasts restarts of the server and broken connections, for `RetryPolicy.waiting_patience`.
        """
        if timeout is None:
            while True:
                outcome = await outcome_of(await self._poll(POLL_SECONDS), self._decode)
                if outcome is not None:
                    return outcome
        return await self._timed_wait(duration_ms(timeout, "timeout") / 1000)

    async def send(self, message: InputContent, *, idempotency_key: str | None = None) -> MessageReceipt:
        """Send a message to exactly this Turn, a list of text parts. Accepted is not delivered: the timeline records that [S7].

        Raises `MessageClosed` when it takes none now, `TypeError` for a str.
        """
        answer = await self._transport.write(self._path("/messages"), {"content": input_content(message)}, idempotency_key)
        return read(MessageReceipt, answer)

    async def interrupt(self, *, idempotency_key: str | None = None) -> TurnInterruptReceipt:
        """Interrupt this running Turn, without a hold [S15]. Raises `TurnNotRunning` or `TurnStopping`."""
        answer = await self._transport.write(self._path("/interrupt"), {}, idempotency_key)
        return read(TurnInterruptReceipt, answer)

    async def _timed_wait(self, seconds: float) -> TimedTurnWaitResult[R_co]:
        end = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                while (left := end - time.monotonic()) > 0:
                    outcome = await outcome_of(await self._poll(min(POLL_SECONDS, left)), self._decode)
                    if outcome is not None:
                        return TurnSettled(outcome=outcome)
        except TimeoutError:
            pass
        return TurnWaitTimeout()

    async def _poll(self, seconds: float | None) -> TurnState:
        query: dict[str, object] = {}
        limit = None
        if seconds is not None:
            query["wait"] = f"{max(1, round(seconds * 1000))}ms"
            limit = seconds + _SLACK_SECONDS
        return read(TurnState, await self._transport.call("GET", self._path(""), query=query, timeout=limit, waiting=seconds is not None))

    def _path(self, rest: str) -> str:
        return f"/v1/sessions/{segment(self.session_id)}/turns/{segment(self.id)}{rest}"
