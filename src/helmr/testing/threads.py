"""Event loops in threads of their own: what a test's runtime is made of never runs in the loop of the test."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS: Final = 20.0
"""How long a blocking call into such a loop may take: what comes later never comes."""


class LoopThread:
    """A running event loop. `run` is for any other thread; `close` ends what still runs in it."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float | None = PATIENCE_SECONDS) -> T:
        """The result of `work`; it is cancelled when the caller is interrupted. Raises `TimeoutError` with the place where it waits."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                raise
            raise TimeoutError(f"{self._thread.name} did not finish {work.__qualname__} in {seconds:g} s:\n{self.stack()}") from None
        finally:
            future.cancel()

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call something, soon."""
        self.loop.call_soon_threadsafe(call, *arguments)

    def stack(self) -> str:
        """Where the thread is now."""
        return stack_of(self._thread)

    def close(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Cancel what runs, stop the loop, join the thread. Idempotent."""
        if self.loop.is_closed():
            return
        self.run(_end_tasks(), seconds)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(seconds)
        self.loop.close()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


def stack_of(thread: threading.Thread) -> str:
    """The stack of a running thread, innermost last; empty when it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
    return "" if frame is None else "".join(traceback.format_stack(frame))


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
