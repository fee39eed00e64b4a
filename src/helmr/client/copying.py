"""Trees of files between this machine and a Computer, as archives that are never whole in memory. SPEC [C8]."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from helmr.protocol.archive import PIECE_BYTES, Copied, Unpacker, packed


async def packing(source: Path, copied: Copied) -> AsyncGenerator[bytes]:
    """The archive of `source`, in pieces of some size. What is no file, folder or link is left out."""
    pieces = packed(str(source), copied)
    while piece := await asyncio.to_thread(_some, pieces):
        yield piece


def _some(pieces: Iterator[bytes]) -> bytes:
    some: list[bytes] = []
    size = 0
    for piece in pieces:
        some.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            break
    return b"".join(some)


async def unpacking(pieces: AsyncIterator[bytes], target: Path) -> Copied:
    """Put the archive in the place of `target`, whose folder is there. Nothing of it gets anywhere else, whatever it says.

    Raises `ArchiveError` and `OSError`, and what `pieces` raises.
    """
    source = _Incoming(asyncio.get_running_loop(), pieces)
    unpacker = Unpacker(str(target.parent), target.name, inside=True)

    def unpack() -> Copied:
        copied = unpacker.unpack(io.BufferedReader(source, PIECE_BYTES))
        while source.read(PIECE_BYTES):  # To the end of the reply, which alone says that it was whole.
            continue
        return copied

    return await asyncio.to_thread(unpack)


class _Incoming(io.RawIOBase):
    """Pieces that an event loop gets, for a thread that reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pieces: AsyncIterator[bytes]) -> None:
        self._loop, self._pieces = loop, pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(asyncio.run_coroutine_threadsafe(self._next(), self._loop).result())
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    async def _next(self) -> bytes:
        return await anext(self._pieces, b"")
