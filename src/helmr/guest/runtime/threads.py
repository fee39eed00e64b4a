"""Plain `def` handlers: they run in a thread, and the bridge runs their Turn's operations in the event loop. SPEC [A1]."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import copy_context
from typing import Any, TypeVar, cast

from helmr.protocol.errors import TurnCancelled
from helmr.sdk.signal import AbortSignal

R = TypeVar("R")


async def in_thread(function: Callable[..., R], *args: Any) -> R:
    """Run `function` in a thread of its own and return what it returns.

    A thread can't be cancelled: when the waiting task is, this goes on waiting until the function has really returned, and gives its
    result or error.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    outcome: list[Callable[[], R]] = []
    context = copy_context()

    def work() -> None:
        try:
            result = context.run(function, *args)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised in the waiting task
            outcome.append(_raiser(error))
        else:
            outcome.append(lambda: result)
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, ended)

    threading.Thread(target=work, name=f"helmr-{getattr(function, '__name__', 'handler')}", daemon=True).start()
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            continue
    return outcome[0]()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _raiser(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> Any:
        raise error

    return raise_it


class ThreadBridge:
    """The way from a handler's thread into the event loop of its Turn."""

    __slots__ = ("_loop", "_signal")

    def __init__(self, loop: asyncio.AbstractEventLoop, signal: AbortSignal) -> None:
        self._loop = loop
        self._signal = signal

    def call(self, start: Callable[[], Awaitable[R]]) -> R:
        """Start an operation in the event loop and wait for it. Raises `TurnCancelled` once the Turn is being stopped."""
        self._signal.raise_if_aborted()
        return asyncio.run_coroutine_threadsafe(self._run(start), self._loop).result()

    async def _run(self, start: Callable[[], Awaitable[R]]) -> R:
        self._signal.raise_if_aborted()
        task = asyncio.current_task()
        stop = self._signal.listen(lambda _: task.cancel() if task is not None else None)
        try:
            return await start()
        except asyncio.CancelledError:
            if self._signal.reason is not None:
                raise TurnCancelled(reason=self._signal.reason) from None
            raise
        finally:
            stop()

    def adapt(self, argument: object) -> object:
        """Make functions and iterators of the thread safe for the event loop; all else stays as it is."""
        if isinstance(argument, Iterator):
            return _stepped(cast("Iterator[object]", argument))
        if callable(argument) and not inspect.iscoroutinefunction(argument):
            return _threaded(argument)
        return argument


def _threaded(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any) -> Any:
        return await in_thread(function, *args)

    return call


async def _stepped(values: Iterator[object]) -> AsyncIterator[object]:
    end = object()
    while True:
        value = await asyncio.to_thread(next, values, end)
        if value is end:
            return
        yield value
