"""What a Turn handler sees: `Turn`, and `SyncTurn`, which is made from it for handlers that run in a thread. SPEC [A4].

The operations of a Turn start when they are called and return an awaitable. Await each before the handler returns: one that nobody
awaited fails the Turn with `unjoined_operations` [S10].
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, overload

from helmr.protocol.content import HumanContent, InputContent
from helmr.protocol.questions import ChoiceAnswer, ChoiceQuestion, TextAnswer, TextQuestion
from helmr.protocol.sources import InputSource, Responder
from helmr.protocol.states import AbortReason
from helmr.sdk.signal import AbortSignal

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Input_co = TypeVar("Input_co", covariant=True, default=InputContent)
    Answer_co = TypeVar("Answer_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Input_co = TypeVar("Input_co", covariant=True)
    Answer_co = TypeVar("Answer_co", covariant=True)

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReceipt:
    """One output is stored: `sequence` is the sequence of its event in the Session's timeline."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message to this Turn."""

    id: str
    content: InputContent
    source: InputSource


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAnswer(Generic[Answer_co]):
    """A question's answer, and who gave it [Q1]."""

    answer: Answer_co
    responded_by: Responder


CancelHandler = Callable[[AbortReason], Awaitable[object] | None]
MessageHandler = Callable[[Message], Awaitable[object] | None]


class Output(ABC):
    """A Turn's output: Content values, each one event of the timeline, in the order of the calls."""

    __slots__ = ()

    @abstractmethod
    def write(self, value: HumanContent) -> Awaitable[OutputReceipt]:
        """Append one Content value, or a str; done when it is stored.

        Raises (when awaited) `ContentInvalid`, and `ContentLimitExceeded` past 256 KiB, 64 parts, or 8 MiB in the whole Turn [E6];
        the Turn may go on.
        """

    @abstractmethod
    def pipe(self, values: AsyncIterable[HumanContent] | Iterable[HumanContent], *, signal: AbortSignal | None = None) -> Awaitable[None]:
        """Append each value of an iterable, in order, one event each; done when the iterable ended and all is stored.

        Up to 256 values are in flight; then the iterable waits. Raises what `write` raises, what the iterable raises, and
        `TurnCancelled` when `signal` aborts; what was taken from the iterable before is stored.
        """


class TurnFacts(Generic[Input_co]):
    """What is known of a Turn when it starts."""

    __slots__ = ("_created_at", "_id", "_input", "_sequence", "_source")

    def __init__(self, *, id: str, sequence: int, created_at: str, input: Input_co, source: InputSource) -> None:
        self._id, self._sequence, self._created_at, self._input, self._source = id, sequence, created_at, input, source

    @property
    def id(self) -> str:
        """The Turn's id."""
        return self._id

    @property
    def sequence(self) -> int:
        """Its place in the order of admission within the Session, from 1."""
        return self._sequence

    @property
    def created_at(self) -> str:
        """When it was admitted: RFC 3339, UTC."""
        return self._created_at

    @property
    def input(self) -> Input_co:
        """The output of the Agent's input schema; text parts without a schema."""
        return self._input

    @property
    def source(self) -> InputSource:
        """Where the input came from."""
        return self._source


class Turn(TurnFacts[Input_co], ABC):
    """One Turn, as its `async def` handler sees it."""

    __slots__ = ()

    @property
    @abstractmethod
    def signal(self) -> AbortSignal:
        """Aborts when this Turn is interrupted, cancelled, out of time or failed, or when the Session's process shuts down [A6]."""

    @property
    @abstractmethod
    def output(self) -> Output:
        """Where its output goes."""

    @abstractmethod
    def on_cancel(self, handler: CancelHandler) -> None:
        """Register cancellation work: `handler(reason)` starts when the Turn is stopped, beside the draining handler, and is joined [S13].

        Each registration runs at most once, never on success. Registered while the Turn drains it starts at once; later
        `RegistrationClosed` is raised. A handler that raises ends the Session's whole process tree.
        """

    @abstractmethod
    def respond(self, value: HumanContent) -> Awaitable[None]:
        """Stage the human-facing response, which is published if the Turn completes.

        Raises (when awaited) `ResponseAlreadyStaged` for a second one, `TurnSettling` after the handler returned, `TurnCancelled` once the
        Turn is being stopped, and like `Output.write` for the value.
        """

    @abstractmethod
    def on_message(self, handler: MessageHandler) -> Awaitable[None]:
        """Take messages for this Turn, one at a time, in order; done when it is recorded that this Turn takes messages [S7].

        `MessageRejected` from the handler rejects the message; any other exception fails the Turn. Raises (when awaited)
        `MessageHandlerRegistered` for a second handler and `TurnSettling` after the Turn's handler returned.
        """

    @overload
    @abstractmethod
    def ask(self, question: TextQuestion, *, signal: AbortSignal | None = None) -> Awaitable[AskAnswer[TextAnswer]]: ...
    @overload
    @abstractmethod
    def ask(self, question: ChoiceQuestion, *, signal: AbortSignal | None = None) -> Awaitable[AskAnswer[ChoiceAnswer]]: ...
    @overload
    @abstractmethod
    def ask(self, question: Mapping[str, Any], *, signal: AbortSignal | None = None) -> Awaitable[AskAnswer[Any]]: ...
    @abstractmethod
    def ask(self, question: Mapping[str, Any], *, signal: AbortSignal | None = None) -> Awaitable[AskAnswer[Any]]:
        """Ask a person; done when someone answered [Q1].

        Raises (when awaited) `RootSessionRequired` in an owned Session, `ContentInvalid`, `ContentLimitExceeded` or `InvalidValue` for a
        bad question, `TurnSettling` after the handler returned, `TurnCancelled` once the Turn is being stopped, and `AskCancelled`
        when the question is cancelled or `signal` aborts. Cancelling the waiting task withdraws the question.
        """


# --- the same for a plain `def` handler --------------------------------------------------------------------------------------


class Bridge(Protocol):
    """Runs one operation of the event loop for a thread that waits for it."""

    def call(self, start: Callable[[], Awaitable[R]]) -> R:
        """Call `start` in the event loop and wait for its awaitable. Raises `TurnCancelled` once the Turn is being stopped."""
        ...

    def adapt(self, argument: object) -> object:
        """`argument` as the event loop wants it: plain functions and iterables of the thread become ones that don't block the loop."""
        ...


class _Bridged(Protocol):
    @property
    def _bridge(self) -> Bridge: ...
    @property
    def _origin(self) -> Any: ...


class _Blocking(Generic[P, R]):
    """A method that blocks, made from one that returns an awaitable; its parameters and result are the same."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: _Bridged, owner: object = None) -> Callable[P, R]:
        bridge, origin, name = instance._bridge, instance._origin, self._method.__name__  # pyright: ignore[reportPrivateUsage]

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            adapted = [bridge.adapt(argument) for argument in args]
            named = {key: bridge.adapt(argument) for key, argument in kwargs.items()}
            return bridge.call(lambda: getattr(origin, name)(*adapted, **named))

        return call


class SyncSignal:
    """An `AbortSignal` for a thread: `wait` blocks."""

    __slots__ = ("_origin",)

    def __init__(self, origin: AbortSignal) -> None:
        self._origin = origin

    @property
    def aborted(self) -> bool:
        """Whether the work should stop."""
        return self._origin.aborted

    @property
    def reason(self) -> AbortReason | None:
        """Why the work should stop; None while it may go on."""
        return self._origin.reason

    def raise_if_aborted(self) -> None:
        """Raise `TurnCancelled` with the reason if the work should stop."""
        self._origin.raise_if_aborted()

    def wait(self, timeout: float | None = None) -> AbortReason | None:
        """Block until there is a reason, and return it; None after `timeout` seconds without one."""
        event = threading.Event()
        stop = self._origin.listen(lambda _: event.set())
        try:
            event.wait(timeout)
        finally:
            stop()
        return self._origin.reason


class SyncOutput:
    """A Turn's output for a thread."""

    __slots__ = ("_bridge", "_origin")

    def __init__(self, origin: Output, bridge: Bridge) -> None:
        self._origin = origin
        self._bridge = bridge

    write = _Blocking(Output.write)
    pipe = _Blocking(Output.pipe)


class SyncTurn(TurnFacts[Input_co]):
    """One Turn, as a plain `def` handler sees it, in a thread of its own: each call blocks until it is done.

    Calls raise `TurnCancelled` once the Turn is being stopped; a thread can't be cancelled, so a handler that computes for long
    should look at `signal.aborted`.
    """

    __slots__ = ("_bridge", "_origin")

    def __init__(self, turn: Turn[Input_co], bridge: Bridge) -> None:
        super().__init__(id=turn.id, sequence=turn.sequence, created_at=turn.created_at, input=turn.input, source=turn.source)
        self._origin = turn
        self._bridge = bridge

    @property
    def signal(self) -> SyncSignal:
        """Aborts when this Turn is stopped [A6]."""
        return SyncSignal(self._origin.signal)

    @property
    def output(self) -> SyncOutput:
        """Where its output goes."""
        return SyncOutput(self._origin.output, self._bridge)

    def on_cancel(self, handler: CancelHandler) -> None:
        """Register cancellation work, which runs in a thread; see `Turn.on_cancel`."""
        adapted = self._bridge.adapt(handler)
        self._bridge.call(lambda: _registered(self._origin, adapted))

    respond = _Blocking(Turn.respond)
    on_message = _Blocking(Turn.on_message)

    if TYPE_CHECKING:
        # An overloaded method keeps only its first form when another is made from it; so its types are said again.
        @overload
        def ask(self, question: TextQuestion, *, signal: AbortSignal | None = None) -> AskAnswer[TextAnswer]: ...
        @overload
        def ask(self, question: ChoiceQuestion, *, signal: AbortSignal | None = None) -> AskAnswer[ChoiceAnswer]: ...
        @overload
        def ask(self, question: Mapping[str, Any], *, signal: AbortSignal | None = None) -> AskAnswer[Any]: ...
        def ask(self, question: Mapping[str, Any], *, signal: AbortSignal | None = None) -> AskAnswer[Any]: ...
    else:
        ask = _Blocking(Turn.ask)


async def _registered(turn: Turn[Any], handler: Any) -> None:
    turn.on_cancel(handler)
