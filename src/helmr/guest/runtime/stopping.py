"""Stopping a Turn: one signal, one cancellation, the callbacks beside the draining handler, one shared limit. SPEC [A6], [S11], [S13]."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helmr.protocol.errors import RegistrationClosed
from helmr.protocol.states import AbortReason
from helmr.sdk.signal import AbortController, AbortSignal
from helmr.sdk.turn import CancelHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a Turn stops. `error` {code, message} is there when the guest itself made the mark."""

    reason: AbortReason
    error: dict[str, str] | None = None


class Cancellation:
    """What a Turn runs when it is stopped. `drained` is called each time something of it has ended, `undrained(detail)` when a
    callback raised or the time ran out; then the process tree has to go."""

    def __init__(self, loop: asyncio.AbstractEventLoop, drained: Callable[[], None], undrained: Callable[[str], None]) -> None:
        self._loop = loop
        self._drained, self._undrained = drained, undrained
        self._controller: AbortController | None = None
        self._handlers: list[CancelHandler] = []
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.stop: Stop | None = None

    @property
    def signal(self) -> AbortSignal:
        """Made when somebody asks for it: most handlers don't."""
        if self._controller is None:
            self._controller = AbortController()
            if self.stop is not None:
                self._controller.abort(self.stop.reason)
        return self._controller.signal

    @property
    def idle(self) -> bool:
        """Whether no callback runs."""
        return not self._running

    def register(self, handler: CancelHandler) -> None:
        """Keep a callback for the stop; start it at once while the Turn drains. Raises `RegistrationClosed` after."""
        if self._closed:
            raise RegistrationClosed
        if self.stop is None:
            self._handlers.append(handler)
        else:
            self._start(handler, self.stop.reason)

    def begin(self, stop: Stop, seconds: float) -> None:
        """Abort the signal and start every callback; all have `seconds` until the Turn counts as undrained. The first stop stands."""
        self.stop = stop
        self._timer = self._loop.call_later(max(seconds, 0.0), self._expire)
        if self._controller is not None:
            self._controller.abort(stop.reason)
        handlers, self._handlers = self._handlers, []
        for handler in handlers:
            self._start(handler, stop.reason)

    def close(self) -> None:
        """No callback can be registered any more, and none is started."""
        self._closed = True
        self._handlers.clear()
        self._drained, self._undrained = _nothing, _ignore  # Else a Turn and this hold each other, and only the collector ends that.
        if self._timer is not None:
            self._timer.cancel()

    def _start(self, handler: CancelHandler, reason: AbortReason) -> None:
        task = self._loop.create_task(_called(handler, reason), name=f"on_cancel({reason})")
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._closed:
            return
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._undrained(f"A cancellation callback raised {describe(error)}")
        else:
            self._drained()

    def _expire(self) -> None:
        if not self._closed:
            self._undrained("The handler and its cancellation callbacks did not end in their cleanup time.")


def _nothing() -> None:
    """The Turn has closed; it waits for nothing any more."""


def _ignore(detail: str) -> None:
    """The Turn has closed; nothing of it is left to drain."""


async def _called(handler: CancelHandler, reason: AbortReason) -> None:
    result: Any = handler(reason)
    if inspect.isawaitable(result):
        await result


def describe(error: BaseException) -> str:
    """The error's type and text, as `sayable`."""
    return sayable("".join(traceback.format_exception_only(error)).strip())


def sayable(text: str) -> str:
    """An Agent's own words about an error, fit for a frame: at most 2,000 characters, what no UTF-8 text can carry escaped."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 2000 else text[:1999] + "…"
