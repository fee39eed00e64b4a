"""Cutting a supervisor's bytes at whole frames, without looking into them.

The relay's hot path: a read is scanned header by header and passed on as one slice. Only channel 0, the supervisor's own frames, is taken
out. DESIGN 7 ("count wake-ups"), I4.
"""

from __future__ import annotations

from typing import NamedTuple

from helmr.protocol.frames import HEADER, HEADER_BYTES, SUPERVISOR, FrameError
from helmr.protocol.limits import FRAME_BYTES


class Cut(NamedTuple):
    """What one read completed: how many frames, and in order (False, frames for the control plane) or (True, a supervisor's payload)."""

    frames: int
    pieces: list[tuple[bool, bytes]]


class FrameCutter:
    """Holds at most one unfinished frame and the read that it came with."""

    __slots__ = ("_need", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._need = HEADER_BYTES

    def feed(self, data: bytes) -> Cut:
        """What `data` completes. Raises `FrameError` for a length over the limit: the stream is lost then."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._need:
                return Cut(0, [])
            data = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        return self._cut(data)

    @property
    def pending(self) -> int:
        """Bytes held of an unfinished frame."""
        return self._size

    def _cut(self, data: bytes) -> Cut:
        start = position = count = 0  # `start`: where the present run of frames for the control plane began
        end = len(data)
        pieces: list[tuple[bool, bytes]] = []
        need = HEADER_BYTES
        unpack = HEADER.unpack_from
        while end - position >= HEADER_BYTES:
            length, channel, _ = unpack(data, position)
            if length > FRAME_BYTES:
                raise FrameError(f"A frame claims {length} bytes; at most {FRAME_BYTES} are allowed.")
            after = position + HEADER_BYTES + length
            if after > end:
                need = HEADER_BYTES + length
                break
            if channel == SUPERVISOR:
                if start < position:
                    pieces.append((False, data[start:position]))
                pieces.append((True, data[position + HEADER_BYTES : after]))
                start = after
            position = after
            count += 1
        if start < position:
            pieces.append((False, data[start:position]))
        if position < end:
            self._parts.append(data[position:])
            self._size = end - position
        self._need = need
        return Cut(count, pieces)
