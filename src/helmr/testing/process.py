"""A Session process of a test: the real guest runtime (`guest.session`), in a thread with an event loop of its own.

What differs from a process on a Computer:

- A process is killed; a thread can't be. `kill` stops the loop at the handler's next `await`: nothing of the Session runs from then on, no
  `except`, no `finally`. Code that never awaits goes on, unheard; `join` tells whether it ended, `stack` where it is.
- At the end of the test the tasks of a killed Session are cancelled, so that they can let go of what they hold.
- The working directory is the thread's own where the kernel allows it, and a folder of the Session's Computer.
- The event loop's time runs ahead with the test's clock; `time.time()` and `time.sleep()` don't.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from helmr.guest.polling import GuestLoop
from helmr.guest.session import SessionProcess
from helmr.testing.threads import stack_of

END_SECONDS: Final = 2.0
"""How long the tasks of a Session may take to end once they are cancelled, at the end of its process."""

_CLONE_FS: Final = 0x200
_FOREIGN: Final = (
    "Something of a Session's event loop was used by another thread. A Session has its own loop, as it has its own process on a Computer: "
    "share a helmr.testing.Gate with the test, not an asyncio.Event."
)


class SessionLoop(GuestLoop):
    """The event loop of one Session process; `ahead()` is by how many seconds its time is moved."""

    def __init__(self, ahead: Callable[[], float]) -> None:
        self._ahead = ahead
        self._home = threading.get_ident()
        super().__init__()

    def time(self) -> float:
        return super().time() + self._ahead()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        if threading.get_ident() != self._home:
            self.call_soon_threadsafe(callback, *args, context=context)  # So that nobody waits for ever besides.
            raise RuntimeError(_FOREIGN)
        return super().call_soon(callback, *args, context=context)


class SessionThread:
    """One Session process. `on_exit(code)` is called in its thread when it has ended by itself."""

    def __init__(
        self,
        name: str,
        connection: socket.socket,
        *,
        load: Callable[[str, str, str], Any],
        ahead: Callable[[], float],
        folder: Path,
        on_exit: Callable[[int], None],
    ) -> None:
        self._connection, self._load, self._ahead, self._folder, self._on_exit = connection, load, ahead, folder, on_exit
        self._loop: SessionLoop | None = None
        self._killed = self._serving = False
        self._released = threading.Event()
        self._lock = threading.Lock()
        self.left: list[str] = []
        """Tasks of it that did not end when they were cancelled."""
        self.owns_folder = False
        """Whether the kernel gave it a working directory of its own."""
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End it as SIGKILL ends a process: nothing of it runs any more until `release`. For any thread, idempotent."""
        with self._lock:
            self._killed = True
            self._call(self._stop)

    def wake(self) -> None:
        """Have its loop look at the clock: it has moved."""
        with self._lock:
            self._call(_look)

    def release(self) -> None:
        """Let a killed one clean up: the test is over."""
        self._released.set()

    def join(self, seconds: float) -> bool:
        """Whether its thread has ended, within `seconds`."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def stack(self) -> str:
        """Where it is now, innermost last."""
        return stack_of(self._thread)

    def _call(self, call: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call)

    def _stop(self) -> None:
        if self._loop is not None and self._serving:
            self._loop.stop()

    def _main(self) -> None:
        self.owns_folder = _enter(self._folder)
        loop = SessionLoop(self._ahead)
        asyncio.set_event_loop(loop)
        code = 1
        try:
            code = self._serve(loop)
            if self._killed:
                self._released.wait()
            self.left = _end_tasks(loop)
        finally:
            asyncio.set_event_loop(None)
            with self._lock:
                loop.close()
            self._connection.close()
            if not self._killed:
                self._on_exit(code)

    def _serve(self, loop: SessionLoop) -> int:
        """Run until the Session's process ends, or is killed; the exit status."""
        main = loop.create_task(SessionProcess(self._connection, load=self._load).run(), name="session")
        main.add_done_callback(lambda _: self._stop())
        with self._lock:
            self._loop, self._serving = loop, True
            if self._killed:
                loop.call_soon(self._stop)
        try:
            loop.run_forever()
        except SystemExit as error:
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        finally:
            self._serving = False
        if not main.done():
            return 0
        if (error := main.exception()) is not None:
            traceback.print_exception(error)
            return 1
        return main.result()


def _look() -> None:
    """A pass of the loop, which looks at the clock."""


def _end_tasks(loop: SessionLoop) -> list[str]:
    """Cancel what is left in the loop, as the end of `asyncio.run` does, in bounded time; what did not end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    left: set[asyncio.Task[Any]] = set()
    if tasks:
        _, left = loop.run_until_complete(asyncio.wait(tasks, timeout=END_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    return [repr(task) for task in left]


def _enter(folder: Path) -> bool:
    """Make `folder` the working directory of this thread and of those that it starts; False where threads can't have one of their own."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FS) != 0:
        return False
    os.chdir(folder)
    return True
