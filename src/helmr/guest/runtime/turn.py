"""One Turn in its Session process, from `turn.start` to `turn.settled`. SPEC [S7], [S9]-[S13].

processing --handler returned--> settling --messages finished, result valid--> closed (completed, or failed)
    |                               |
    +------- stop mark -------------+--> stopping --handler, messages and callbacks ended--> closed (failed, or stopped)
                                                  --a callback raised, or time ran out-----> closed (undrained)
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from helmr.guest.runtime.channel import Channel
from helmr.guest.runtime.mailbox import TURN_CLOSED, Mailbox
from helmr.guest.runtime.operations import Group, Operation, current_group
from helmr.guest.runtime.output import Budget, LiveOutput
from helmr.guest.runtime.questions import Questions
from helmr.guest.runtime.result import ResultInvalid, ResultTooLarge, encoded_result, validated_result
from helmr.guest.runtime.source import input_source
from helmr.guest.runtime.stopping import Cancellation, Stop, describe, sayable
from helmr.guest.runtime.threads import ThreadBridge, in_thread
from helmr.protocol import jsontext
from helmr.protocol.content import HumanContent, normalize
from helmr.protocol.errors import (
    AuthoringError,
    HelmrError,
    MessageHandlerRegistered,
    ResponseAlreadyStaged,
    SchemaError,
    TurnCancelled,
    TurnSettling,
)
from helmr.protocol.limits import CLEANUP_SECONDS, RESPONSE_BYTES
from helmr.protocol.sources import InputSource
from helmr.protocol.states import AbortReason
from helmr.sdk.schema import Schema, validated
from helmr.sdk.signal import AbortSignal
from helmr.sdk.turn import AskAnswer, CancelHandler, MessageHandler, Output, SyncTurn, Turn

COMPLETED: Final = "completed"
FAILED: Final = "failed"
STOPPED: Final = "stopped"


class Handler(Protocol):
    """What a Turn needs of its Agent's definition."""

    @property
    def turn(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def input_schema(self) -> Schema[Any] | None: ...
    @property
    def result_schema(self) -> Schema[Any] | None: ...


class InputInvalid(AuthoringError):
    """The input does not fit the Agent's input schema; the handler was not called [S9]."""

    code = "input_invalid"


class TurnRun:
    """Runs one Turn. `on_closed(undrained)` is called once, when its last frame is posted."""

    def __init__(
        self,
        frame: Mapping[str, Any],
        *,
        handler: Handler,
        context: object,
        root: bool,
        channel: Channel,
        on_closed: Callable[[bool], None],
    ) -> None:
        facts = frame["turn"]
        self.id: str = facts["id"]
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._facts: Mapping[str, Any] = facts
        self._raw: Any = frame.get("input")
        self._definition, self._context, self._channel, self._on_closed = handler, context, channel, on_closed
        self._budget = Budget()
        self._group = Group()
        self._unjoined: list[Operation[Any]] = []
        self._owned: set[asyncio.Task[None]] = set()
        self.places: dict[int, int] = {}
        """Which of this Turn's outputs, from 1, a frame carries, by its op while its receipt is awaited."""
        self._drained = False
        """Whether the handler has ended."""
        self._finishing: asyncio.Task[bytes] | None = None
        self._returned = False
        self._result: Any = None
        self._response: bytes | None = None
        self.cancellation = Cancellation(self.loop, self._proceed, self._undrained)
        self._mailbox: Mailbox | None = None
        self.questions = Questions(channel, self.loop, self.id, self._budget, root=root)
        self._task = self.loop.create_task(self._handle(), name=f"turn {self.id}")
        self._task.add_done_callback(self._handled)

    # --- what the session process does to it ------------------------------------------------------------------------------

    def stop(self, reason: AbortReason, seconds: float) -> None:
        """Obey a stop mark of the host: abort, cancel, run the callbacks, all within `seconds`. The first stop stands [S11]."""
        self._begin_stop(Stop(reason=reason), seconds)

    def take_message(self, frame: dict[str, Any]) -> None:
        """Take a message of the host for this Turn."""
        self.mailbox().take(frame)

    def mailbox(self) -> Mailbox:
        """Made when the first message or handler comes: most Turns have neither."""
        if self._mailbox is None:
            self._mailbox = Mailbox(self._channel, self.loop, self._message_failed, self._proceed)
            if self.cancellation.stop is not None:
                self._mailbox.cancel()
        return self._mailbox

    def operation(self, name: str) -> Operation[Any]:
        """A new operation, counted with those of the function that starts it."""
        operation: Operation[Any] = Operation(name, self.loop, self._channel.flush)
        current_group.get(self._group).add(operation)
        return operation

    def own(self, operation: Operation[None], work: Coroutine[Any, Any, None]) -> None:
        """Run `work` for an operation until the Turn closes; cancelling who awaits it ends it."""
        task = self.loop.create_task(work, name=operation.name)
        self._owned.add(task)
        operation.withdraw = task.cancel

        def ended(task: asyncio.Task[None]) -> None:
            self._owned.discard(task)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                operation.succeed(None)
            else:
                operation.fail(error)

        task.add_done_callback(ended)

    # --- what the handler does --------------------------------------------------------------------------------------------

    def respond(self, value: HumanContent) -> Awaitable[None]:
        operation = self.operation("respond")
        try:
            self._still_processing()
            if self._response is not None:
                raise ResponseAlreadyStaged
            _, self._response = normalize(value, RESPONSE_BYTES)
        except HelmrError as error:
            operation.fail(error)
        else:
            operation.succeed(None)
        return operation

    def on_message(self, handler: MessageHandler) -> Awaitable[None]:
        operation = self.operation("on_message")
        try:
            self._still_processing()
            if self.mailbox().registered:
                raise MessageHandlerRegistered
        except HelmrError as error:
            operation.fail(error)
            return operation
        self.mailbox().register(handler)
        self._channel.post(self._frame("messages.open"), ask=True, stored=lambda _: operation.succeed(None))
        return operation

    def ask(self, question: Mapping[str, Any], signal: AbortSignal | None) -> Awaitable[AskAnswer[Any]]:
        operation = self.operation("ask")
        try:
            self._still_processing()
            self.questions.ask(operation, question, signal)
        except HelmrError as error:
            operation.fail(error)
        return operation

    def _still_processing(self) -> None:
        if self.cancellation.stop is not None:
            raise TurnCancelled(reason=self.cancellation.stop.reason)
        if self._returned:
            raise TurnSettling

    # --- the handler ------------------------------------------------------------------------------------------------------

    async def _handle(self) -> None:
        current_group.set(self._group)
        value = await self._validated_input()
        facts = self._facts
        turn = LiveTurn(
            self,
            id=self.id,
            sequence=facts["sequence"],
            created_at=facts["created_at"],
            input=value,
            source=facts.get("source"),
            output=LiveOutput(self, self._channel, self._budget),
        )
        if self._definition.is_async:
            self._result = await self._definition.turn(turn, self._context)
        else:
            bridge = ThreadBridge(self.loop, self.cancellation.signal)
            self._result = await in_thread(self._definition.turn, SyncTurn(turn, bridge), self._context)
        if not self._task.cancelling():
            # The usual end is settled here and now, without another pass of the event loop.
            self._task.remove_done_callback(self._handled)
            self._returned = self._drained = True
            self._settle_operations()

    async def _validated_input(self) -> Any:
        schema = self._definition.input_schema
        if schema is None:
            return self._raw
        try:
            return await validated(schema, self._raw)
        except SchemaError as error:
            raise InputInvalid(error.detail) from error
        except Exception as error:
            raise InputInvalid(f"The input schema raised {describe(error)}") from error

    def _handled(self, task: asyncio.Task[Any]) -> None:
        self._returned = self._drained = True
        if not task.cancelled() and isinstance(task.exception(), (SystemExit, KeyboardInterrupt)):
            return  # The process is ending by the Agent's wish; that is a lost process, not a settled Turn [S14].
        if self.cancellation.stop is not None:
            if not task.cancelled() and (late := task.exception()) is not None and not isinstance(late, TurnCancelled):
                _report(f"Turn {self.id}: the handler raised while it was being stopped.", late)
            self._proceed()
            return
        error = asyncio.CancelledError("The handler was cancelled, but not by a stop.") if task.cancelled() else task.exception()
        if error is None:
            self._settle_operations()
        elif isinstance(error, InputInvalid):
            self._close(FAILED, error=_error(error.code, error.detail))
        else:
            _report(f"Turn {self.id}: the handler raised.", error)
            self._fail("handler_failed", describe(error))

    def _message_failed(self, error: BaseException) -> None:
        _report(f"Turn {self.id}: the message handler raised.", error)
        self._fail("message_handler_failed", describe(error))

    # --- success: settle --------------------------------------------------------------------------------------------------

    def _settle_operations(self) -> None:
        if self._mailbox is not None and self._mailbox.registered:
            self._mailbox.end(TURN_CLOSED)
            self._channel.post(self._frame("messages.closed"))
        self._unjoined = self._group.unjoined()
        self._proceed()

    def _refuse_unjoined(self) -> bool:
        unjoined = self._unjoined if self._mailbox is None else self._unjoined + self._mailbox.group.unjoined()
        if unjoined:
            names = ", ".join(sorted({operation.name for operation in unjoined}))
            self._close(FAILED, error=_error("unjoined_operations", f"Nobody awaited {len(unjoined)} operations to their end: {names}."))
        return bool(unjoined)

    def _finished(self, task: asyncio.Task[bytes]) -> None:
        if self.cancellation.stop is not None:
            self._proceed()
        elif task.cancelled():
            self._close(FAILED, error=_error(ResultInvalid.code, "The validation of the result was cancelled."))
        elif isinstance(error := task.exception(), AuthoringError):
            self._close(FAILED, error=_error(error.code, error.detail))
        elif error is not None:
            raise error
        else:
            self._close(COMPLETED, result=task.result())

    # --- stop -------------------------------------------------------------------------------------------------------------

    def _fail(self, cause: str, message: str) -> None:
        if self.cancellation.stop is None and not self.closed:
            error = _error(cause, message)
            self._channel.post(self._frame("turn.stopping", cause=cause, error=error))
            self._begin_stop(Stop(reason="failed", error=error), CLEANUP_SECONDS)

    def _begin_stop(self, stop: Stop, seconds: float) -> None:
        if self.cancellation.stop is not None or self.closed:
            return
        self._task.cancel()
        if self._finishing is not None:
            self._finishing.cancel()
        self.cancellation.begin(stop, seconds)
        self.questions.end(lambda: TurnCancelled(reason=stop.reason))
        if self._mailbox is not None:
            self._mailbox.cancel()
        self._proceed()

    def _undrained(self, detail: str) -> None:
        if not self.closed:
            self._end()
            self._channel.post(self._frame("turn.undrained", detail=detail))
            self._on_closed(True)

    # --- both -------------------------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """Take the next step towards the settlement, if what it waits for has ended."""
        if self.closed or not self._drained or (self._mailbox is not None and not self._mailbox.idle):
            return
        stop = self.cancellation.stop
        if stop is not None:
            if self.cancellation.idle and (self._finishing is None or self._finishing.done()):
                self._close(STOPPED) if stop.error is None else self._close(FAILED, error=stop.error)
        elif self._returned and self._finishing is None and not self._refuse_unjoined():
            schema = self._definition.result_schema
            if schema is not None:
                self._finishing = self.loop.create_task(validated_result(schema, self._result), name=f"result of {self.id}")
                self._finishing.add_done_callback(self._finished)
                return
            try:
                result = encoded_result(None, self._result)
            except (ResultInvalid, ResultTooLarge) as error:
                self._close(FAILED, error=_error(error.code, error.detail))
            else:
                self._close(COMPLETED, result=result)

    def _close(self, status: str, *, error: dict[str, str] | None = None, result: bytes | None = None) -> None:
        self._end()
        body = b'{"t":"turn.settled","turn":"' + self.id.encode() + b'","status":"' + status.encode() + b'"'
        if error is not None:
            body += b',"error":' + jsontext.dumps(error)
        if result is not None:
            body += b',"result":' + result
            if self._response is not None:
                body += b',"response":' + self._response
        self._channel.post(body)
        self._channel.flush()
        self._on_closed(False)

    def _end(self) -> None:
        self.closed = True
        self.cancellation.close()
        if self._mailbox is not None:
            self._mailbox.end(TURN_CLOSED)
        self.questions.end(TurnSettling)
        for task in tuple(self._owned):
            task.cancel()

    def _frame(self, kind: str, **members: Any) -> bytes:
        return jsontext.dumps({"t": kind, "turn": self.id, **members})[:-1]


_UNREAD: Final = input_source(None)


class LiveTurn(Turn[Any]):
    """The Turn that a handler holds."""

    __slots__ = ("_origin", "_output", "_run")

    def __init__(self, run: TurnRun, *, output: Output, source: dict[str, Any] | None, **facts: Any) -> None:
        super().__init__(source=_UNREAD, **facts)
        self._run, self._output, self._origin = run, output, source

    @property
    def source(self) -> InputSource:
        if self._source is _UNREAD:
            self._source = input_source(self._origin)
        return self._source

    @property
    def signal(self) -> AbortSignal:
        return self._run.cancellation.signal

    @property
    def output(self) -> Output:
        return self._output

    def on_cancel(self, handler: CancelHandler) -> None:
        self._run.cancellation.register(handler)

    def respond(self, value: HumanContent) -> Awaitable[None]:
        return self._run.respond(value)

    def on_message(self, handler: MessageHandler) -> Awaitable[None]:
        return self._run.on_message(handler)

    def ask(self, question: Mapping[str, Any], *, signal: AbortSignal | None = None) -> Awaitable[AskAnswer[Any]]:
        return self._run.ask(question, signal)


def _error(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": sayable(message)}


def _report(what: str, error: BaseException) -> None:
    print(what, *traceback.format_exception(error), sep="\n", file=sys.stderr, end="", flush=True)
