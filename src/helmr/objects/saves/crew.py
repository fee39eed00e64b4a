"""Reading many files at once: the walk opens them, a few threads read, hash, compress and encrypt."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from types import TracebackType
from typing import Final, Generic, TypeVar

T = TypeVar("T")

THREADS: Final = min(4, os.cpu_count() or 1)
_BATCH_FILES: Final = 16
_BATCH_BYTES: Final = 1 << 20
_AHEAD: Final = 2 * THREADS
"""Batches that wait or are worked at: what bounds open files."""


class Crew(Generic[T]):
    """Does `work` for jobs in threads, in batches of small ones. `add` waits while too many are ahead."""

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._pool: ThreadPoolExecutor | None = None
        self._room = BoundedSemaphore(_AHEAD)
        self._batch: list[T] = []
        self._bytes = 0
        self._pending: list[Future[None]] = []
        self._ended = False

    def add(self, job: T, size: int) -> None:
        self._batch.append(job)
        self._bytes += size
        if len(self._batch) >= _BATCH_FILES or self._bytes >= _BATCH_BYTES:
            self._send()

    def join(self) -> None:
        """Return when every job is done. Raises what a job raised first."""
        self._send()
        for future in self._pending:
            future.result()
        self._pending.clear()

    def __enter__(self) -> Crew[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended = True
        self._send()
        if self._pool is not None:
            self._pool.shutdown()

    def _send(self) -> None:
        if not self._batch:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="saves")
        self._room.acquire()
        batch, self._batch, self._bytes = self._batch, [], 0
        self._pending.append(self._pool.submit(self._run, batch))

    def _run(self, batch: list[T]) -> None:
        try:
            self._run_all(iter(batch))
        finally:
            self._room.release()

    def _run_all(self, jobs: Iterator[T]) -> None:
        """Each job is begun, also when one before it failed: it has a file to close."""
        for job in jobs:
            try:
                self._work(job)
            except BaseException:
                self._run_all(jobs)
                raise
