"""Replies that wait for their readers: who takes nothing for too long is cut, and so is who has waited longest when all are too much.

uvicorn keeps what a client does not read for as long as the client likes. A few hundred clients that ask for pages of 4 MiB and read
nothing would hold gigabytes; here what all replies of a process hold together has a bound (UD-52).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

PATIENCE_SECONDS: Final = 30.0
HELD_BYTES: Final = 256 << 20


class Unsent:
    """The connections whose buffers are over their mark. A connection belongs to it from `add` to `discard`, however it ends.

    A reader that takes any byte within `patience_seconds` is waited for again. Cutting is the transport's `abort`: the client sees a reply
    that breaks off, never one that looks whole.
    """

    def __init__(self, *, patience_seconds: float = PATIENCE_SECONDS, held_bytes: int = HELD_BYTES) -> None:
        self._patience = patience_seconds
        self._limit = held_bytes
        self._waiting: dict[asyncio.Transport, _Waiting] = {}
        """In the order of the last sign of life, the longest silence first."""
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes that all of them keep in memory."""
        return self._held

    def add(self, transport: asyncio.Transport, longest: int = 0) -> None:
        """Its buffer went over its mark; called in its event loop. `longest` is the size of what was written last: a transport may keep
        all of it until the last byte has left."""
        if transport in self._waiting:
            return
        unsent = transport.get_write_buffer_size()
        timer = asyncio.get_running_loop().call_later(self._patience, self._look, transport)
        self._waiting[transport] = waiting = _Waiting(unsent=unsent, held=max(unsent, longest), timer=timer)
        self._held += waiting.held
        while self._held > self._limit and len(self._waiting) > 1:
            self._cut(next(iter(self._waiting)))

    def discard(self, transport: asyncio.Transport) -> None:
        """Its reader took enough, or is gone."""
        waiting = self._waiting.pop(transport, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._held -= waiting.held

    def _look(self, transport: asyncio.Transport) -> None:
        waiting = self._waiting[transport]
        unsent = transport.get_write_buffer_size()
        if unsent and unsent >= waiting.unsent:
            self._cut(transport)
        else:
            self.discard(transport)
            self.add(transport, waiting.held)

    def _cut(self, transport: asyncio.Transport) -> None:
        self.discard(transport)
        transport.abort()


@dataclass(frozen=True, slots=True)
class _Waiting:
    unsent: int
    held: int
    timer: asyncio.TimerHandle
