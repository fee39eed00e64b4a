"""Operations: what a Turn's calls return. They start when called, and it is seen when nobody awaited one. SPEC [A4], [S10]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Operation(Generic[T]):
    """Something under way. Awaiting it gives its result; it can be awaited again.

    Cancelling a task that awaits it doesn't undo what was started: `withdraw` is called, where there is one, to end what can be ended.
    """

    __slots__ = ("_future", "awaited", "name", "withdraw")

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.awaited = False
        self.withdraw: Callable[[], object] | None = None
        self._future: asyncio.Future[T] = loop.create_future()

    def __await__(self) -> Generator[Any, None, T]:
        self.awaited = True
        future = self._future
        if not future.done():
            try:
                yield from asyncio.shield(future).__await__()
            except asyncio.CancelledError:
                if not future.done() and self.withdraw is not None:
                    self.withdraw()
                raise
        return future.result()

    @property
    def done(self) -> bool:
        """Whether it ended, whichever way."""
        return self._future.done()

    @property
    def joined(self) -> bool:
        """Whether somebody awaited it and it ended."""
        return self.awaited and self._future.done()

    def succeed(self, result: T) -> None:
        """End with a result; the first end stands."""
        if not self._future.done():
            self._future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """End with an error; the first end stands. One that nobody awaits is reported as unjoined, not as a lost exception."""
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()

    def ended_by(self, then: Callable[[], None]) -> None:
        """Call `then` when it ends."""
        self._future.add_done_callback(lambda _: then())

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
