"""`Gate`: a point where the handlers of Agents and their test wait for each other.

A Session has an event loop of its own, as it has a process of its own on a Computer, so an `asyncio.Event` can't be shared with it. A gate
can: it belongs to no loop.
"""

from __future__ import annotations

import asyncio
import threading


class Gate:
    """Closed at first. Once it is open, whoever waits goes on, and nobody waits any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def open(self) -> None:
        """Let everyone through. Idempotent; for any thread."""
        with self._lock:
            self._open.set()
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, waiter)

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def wait(self) -> None:
        """Wait until it is open, in any event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._open.is_set():
                return
            waiter: asyncio.Future[None] = loop.create_future()
            entry = (loop, waiter)
            self._waiters.append(entry)
        try:
            await waiter
        finally:
            with self._lock:
                if entry in self._waiters:
                    self._waiters.remove(entry)

    def wait_blocking(self, seconds: float = 10.0) -> None:
        """Wait until it is open, from a plain `def` handler or test. Raises `TimeoutError`."""
        if not self._open.wait(seconds):
            raise TimeoutError(f"The gate did not open within {seconds:g} s.")


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
