"""Operations: what a Turn's calls return. They start when called, and it is seen when nobody awaited one. SPEC [A4], [S10]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Operation(Generic[T]):
    """Something under way. Awaiting it gives its result; it can be awaited again.

    Cancelling a task that awaits it doesn't undo what was started: `withdraw` is called, where there is one, to end what can be ended.
    """

    __slots__ = ("_error", "_loop", "_on_wait", "_result", "_then", "_traceback", "_waiters", "awaited", "done", "name", "withdraw")

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, on_wait: Callable[[], None]) -> None:
        """`on_wait` is called when somebody begins to wait: the time to send what was posted."""
        self.name = name
        self.awaited = False
        self.done = False
        """Whether it ended, whichever way."""
        self.withdraw: Callable[[], object] | None = None
        self._loop, self._on_wait = loop, on_wait
        self._result: Any = None
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._waiters: tuple[asyncio.Future[None], ...] = ()
        self._then: Callable[[], None] | None = None

    def __await__(self) -> Generator[Any, None, T]:
        self.awaited = True
        if not self.done:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters += (waiter,)
            self._on_wait()
            try:
                yield from waiter
            except asyncio.CancelledError:
                if not self.done and self.withdraw is not None:
                    self.withdraw()
                raise
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)
        return self._result

    @property
    def joined(self) -> bool:
        """Whether somebody awaited it and it ended."""
        return self.awaited and self.done

    def succeed(self, result: T) -> None:
        """End with a result; the first end stands."""
        if not self.done:
            self._result = result
            self._end()

    def fail(self, error: BaseException) -> None:
        """End with an error; the first end stands. One that nobody awaits is reported as unjoined, not as a lost exception."""
        if not self.done:
            self._error, self._traceback = error, error.__traceback__
            self._end()

    def ended_by(self, then: Callable[[], None]) -> None:
        """Call `then` when it ends; it must not have."""
        self._then = then

    def _end(self) -> None:
        self.done = True
        self.withdraw = None
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._then is not None:
            self._then()

    def __repr__(self) -> str:
        return f"<{self.name}: {'done' if self.done else 'under way'}>"


class Group:
    """The operations that one function started: a handler, or a message callback."""

    __slots__ = ("_operations",)

    def __init__(self) -> None:
        self._operations: list[Operation[Any]] = []

    def add(self, operation: Operation[Any]) -> None:
        operations = self._operations
        if operations and operations[-1].joined:
            operations[-1] = operation
            return
        operations.append(operation)
        if len(operations) > 512:
            self._operations = self.unjoined()

    def unjoined(self) -> list[Operation[Any]]:
        """Those that nobody awaited, or that haven't ended yet."""
        return [operation for operation in self._operations if not operation.joined]


current_group: ContextVar[Group] = ContextVar("helmr_operations")
"""Whose operations those are that start now."""
