"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for blocking callers, of any thread. The thread is a daemon: a forgotten one ends with its process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="helmr.sync", daemon=True)
        self._closing = threading.Lock()
        self._closed = False
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closed

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. What interrupts the caller, such as Ctrl-C, cancels the work."""
        if self._closed or threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("This client is closed." if self._closed else "A blocking call can't be made from its own event loop.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """Stop the loop and join its thread. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
