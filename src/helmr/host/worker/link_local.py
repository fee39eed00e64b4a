"""The worker link within one process: `helmr dev` runs control plane and worker in one event loop.

Messages are delivered by `call_soon`, so that a `send` never re-enters its caller, in order, and what was sent before a `close` still
arrives before the other end hears of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from helmr.host.worker.flow import LOW_WATER, OVERFLOW_BYTES
from helmr.host.worker.ports import WorkerEnd
from helmr.protocol.link import Link, LinkEnd


class LocalLink:
    """One end of a pair. It holds what arrives until `bind` says who receives."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._peer: LocalLink | None = None
        self._end: LinkEnd | None = None
        self._on_drained: Callable[[], None] | None = None
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._scheduled = False
        self._open = True
        """Neither closed here nor told that it is closed."""
        self._peer_closed = False

    def bind(self, end: LinkEnd, on_drained: Callable[[], None] | None = None) -> None:
        """Deliver to `end` from now on. `on_drained` is called when this end's own queue falls under the low-water mark."""
        self._end = end
        self._on_drained = on_drained
        self._schedule()

    def send(self, message: bytes) -> None:
        peer = self._peer
        if not self._open or peer is None:
            return
        if peer._inbox_bytes > OVERFLOW_BYTES:
            self._lose()
            return
        peer._inbox.append(message)
        peer._inbox_bytes += len(message)
        peer._schedule()

    def close(self, reason: str = "") -> None:
        peer = self._peer
        if not self._open or peer is None:
            return
        self._open = False
        self._inbox.clear()
        self._inbox_bytes = 0
        peer._peer_closed = True
        peer._schedule()

    @property
    def queued_bytes(self) -> int:
        return self._peer._inbox_bytes if self._peer is not None else 0

    def _join(self, peer: LocalLink) -> None:
        self._peer = peer

    def _lose(self) -> None:
        """Both ends are closed: the receiver failed, or doesn't take what it is sent."""
        peer = self._peer
        assert peer is not None
        self._peer_closed = peer._peer_closed = True
        for end in (self, peer):
            end._inbox.clear()
            end._inbox_bytes = 0
            end._schedule()

    def _schedule(self) -> None:
        if self._end is not None and self._open and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Hand over what had arrived when this call began; what comes meanwhile waits for the next one, so nobody starves."""
        self._scheduled = False
        end, peer = self._end, self._peer
        if end is None or peer is None or not self._open:
            return
        before = self._inbox_bytes
        for _ in range(len(self._inbox)):
            if not self._inbox:
                return
            message = self._inbox.popleft()
            self._inbox_bytes -= len(message)
            try:
                end.on_message(message)
            except BaseException:
                self._lose()
                raise
        if before > LOW_WATER >= self._inbox_bytes and peer._on_drained is not None:
            peer._on_drained()
        if self._inbox:
            self._schedule()
        elif self._peer_closed and self._open:
            self._open = False
            end.on_closed()


def local_pair(loop: asyncio.AbstractEventLoop) -> tuple[LocalLink, LocalLink]:
    """Two joined ends: (for the control plane, for the worker). Each receives once its `bind` was called."""
    control, worker = LocalLink(loop), LocalLink(loop)
    control._join(worker)  # pyright: ignore[reportPrivateUsage]
    worker._join(control)  # pyright: ignore[reportPrivateUsage]
    return control, worker


def local_links(accept: Callable[[Link], LinkEnd]) -> Callable[[WorkerEnd], Awaitable[Link]]:
    """A link factory for a worker beside its control plane; `accept` is what takes a worker's link there."""

    async def connect(end: WorkerEnd) -> Link:
        control, worker = local_pair(asyncio.get_running_loop())
        worker.bind(end, end.on_drained)
        control.bind(accept(control))
        return worker

    return connect
