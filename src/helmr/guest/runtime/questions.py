"""Questions of one Turn to people: asked, answered, withdrawn. SPEC [Q1]-[Q4]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from helmr.guest.runtime.channel import Channel
from helmr.guest.runtime.operations import Operation
from helmr.guest.runtime.output import Budget
from helmr.protocol import jsontext
from helmr.protocol.errors import AskCancelled, RootSessionRequired
from helmr.protocol.questions import normalize_question
from helmr.sdk.signal import AbortSignal
from helmr.sdk.turn import AskAnswer, Responder


class Questions:
    """What the Turn asked and nobody answered yet, by the op of its frame."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop, turn: str, budget: Budget, *, root: bool) -> None:
        self._channel, self._loop, self._turn, self._budget, self._root = channel, loop, turn, budget, root
        self._open: dict[int, Operation[AskAnswer[Any]]] = {}

    def ask(self, operation: Operation[AskAnswer[Any]], question: Mapping[str, Any], signal: AbortSignal | None) -> None:
        """Post a question whose answer resolves `operation`.

        Raises `RootSessionRequired` in an owned Session, `ContentInvalid` and `ContentLimitExceeded` for a bad question, `AskCancelled`
        when `signal` has aborted.
        """
        if not self._root:
            raise RootSessionRequired
        if signal is not None and signal.aborted:
            raise AskCancelled("The question's signal has aborted.")
        _, data = normalize_question(question)
        self._budget.spend(len(data))
        head = b'{"t":"question.ask","turn":"' + self._turn.encode() + b'","question":'
        op = self._channel.post(head + data, ask=True).op
        self._open[op] = operation
        operation.withdraw = lambda: self._withdraw(op, "Nobody waits for the answer any more.")
        if signal is not None:
            operation.ended_by(
                signal.listen(lambda _: self._loop.call_soon_threadsafe(self._withdraw, op, "The question's signal aborted."))
            )

    def answer(self, frame: Mapping[str, Any]) -> None:
        """Resolve the question that the frame names; one that is unknown, withdrawn or resolved is ignored."""
        operation = self._open.pop(frame["ask"], None)
        if operation is not None:
            by: Mapping[str, Any] = frame["responded_by"]
            operation.succeed(AskAnswer(answer=frame["answer"], responded_by=Responder(kind=by["kind"], id=by["id"])))

    def cancelled(self, frame: Mapping[str, Any]) -> None:
        """Fail the question that the frame names."""
        operation = self._open.pop(frame["ask"], None)
        if operation is not None:
            operation.fail(AskCancelled(reason=frame["reason"]))

    def end(self, why: Callable[[], BaseException]) -> None:
        """Fail every open question; the host cancels them with the Turn [Q4]."""
        for operation in self._open.values():
            operation.fail(why())
        self._open.clear()

    def _withdraw(self, op: int, why: str) -> None:
        operation = self._open.pop(op, None)
        if operation is not None:
            operation.fail(AskCancelled(why))
            self._channel.post(jsontext.dumps({"t": "question.withdraw", "ask": op})[:-1])
