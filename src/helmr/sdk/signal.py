"""Abort signals: how an Agent learns that its work should stop. SPEC [A6]."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from helmr.protocol.errors import TurnCancelled
from helmr.protocol.states import AbortReason

Listener = Callable[[AbortReason], object]

_registry = threading.Lock()
"""Guards every signal's listeners: a thread may listen while the event loop aborts."""


class AbortSignal:
    """Says once, and for ever, that work should stop, and why.

    `aborted`, `reason` and `raise_if_aborted` may be used from any thread; `wait` belongs to the event loop that the signal is
    aborted in. Make one of your own with `AbortController`.
    """

    __slots__ = ("_listeners", "_reason")

    def __init__(self) -> None:
        self._reason: AbortReason | None = None
        self._listeners: list[Listener] = []

    @property
    def aborted(self) -> bool:
        """Whether the work should stop."""
        return self._reason is not None

    @property
    def reason(self) -> AbortReason | None:
        """Why the work should stop; None while it may go on."""
        return self._reason

    async def wait(self) -> AbortReason:
        """Return the reason as soon as there is one."""
        if self._reason is not None:
            return self._reason
        waiter: asyncio.Future[AbortReason] = asyncio.get_running_loop().create_future()

        def resolve(reason: AbortReason) -> None:
            if not waiter.done():
                waiter.set_result(reason)

        stop = self.listen(resolve)
        try:
            return await waiter
        finally:
            stop()

    def raise_if_aborted(self) -> None:
        """Raise `TurnCancelled` with the reason if the work should stop."""
        if self._reason is not None:
            raise TurnCancelled(reason=self._reason)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(reason)` at the abort, at once if it has happened. Returns what takes the listener away again.

        Listeners run in the order of registration, in the thread that aborts, and must not raise.
        """
        with _registry:
            reason = self._reason
            if reason is None:
                self._listeners.append(listener)
        if reason is not None:
            listener(reason)
            return _nothing

        def stop() -> None:
            with _registry:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    def __repr__(self) -> str:
        return f"<AbortSignal {self._reason or 'open'}>"


class AbortController:
    """Holds a signal and may abort it."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal: AbortSignal = AbortSignal()

    def abort(self, reason: AbortReason = "cancelled") -> None:
        """Abort the signal. The first reason stands; later calls change nothing."""
        signal = self.signal
        with _registry:
            if signal._reason is not None:  # pyright: ignore[reportPrivateUsage]
                return
            signal._reason = reason  # pyright: ignore[reportPrivateUsage]
            listeners, signal._listeners = signal._listeners, []  # pyright: ignore[reportPrivateUsage]
        for listener in listeners:
            listener(reason)


def _nothing() -> None:
    """There is no listener to take away."""
