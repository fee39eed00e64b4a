"""Turns that this control plane admitted or settled lately, so that waiting for one needs no read. DESIGN 7 (W1).

A terminal row is true (I1) until its payload expires [S22]; that is noticed, and since a notice may be lost (I6) no row is believed for
more than a minute. Any other is only where waiting starts: whoever answers with it reads the database first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

_TURNS: Final = 4096
_BYTES: Final = 16 << 20
_LARGEST: Final = 64 << 10
_SECONDS: Final = 60.0
_PAYLOADS: Final = ("input", "result", "response", "error")


class Recent:
    """Rows by Turn id, the least recently touched forgotten first; bounded by count and by bytes of payload."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: OrderedDict[str, tuple[int, float, dict[str, Any]]] = OrderedDict()
        self._of: dict[str, set[str]] = {}
        self._bytes = 0

    def put(self, turn_id: str, row: dict[str, Any]) -> None:
        """Remember a row: the columns of `turns`, and its Session's Environment."""
        self.forget(turn_id)
        size = _size(row)
        if size > _LARGEST:
            return
        self._rows[turn_id] = (size, self._clock() + _SECONDS, row)
        group = self._of.get(row["session_id"])
        if group is None:
            group = self._of[row["session_id"]] = set()
        group.add(turn_id)
        self._bytes += size
        while len(self._rows) > _TURNS or self._bytes > _BYTES:
            self.forget(next(iter(self._rows)))

    def clear(self) -> None:
        """Forget all."""
        self._rows.clear()
        self._of.clear()
        self._bytes = 0

    def get(self, turn_id: str) -> dict[str, Any] | None:
        found = self._rows.get(turn_id)
        if found is None:
            return None
        if found[1] < self._clock():
            self.forget(turn_id)
            return None
        return found[2]

    def change(self, turn_id: str, members: dict[str, Any]) -> None:
        """Columns of a remembered row changed."""
        found = self._rows.get(turn_id)
        if found is None:
            return
        row = {**found[2], **members}
        size = _size(row)
        if size > _LARGEST:
            self.forget(turn_id)
            return
        self._rows[turn_id] = (size, self._clock() + _SECONDS, row)
        self._rows.move_to_end(turn_id)
        self._bytes += size - found[0]
        while self._bytes > _BYTES:
            self.forget(next(iter(self._rows)))

    def forget(self, turn_id: str) -> None:
        found = self._rows.pop(turn_id, None)
        if found is None:
            return
        size, _, row = found
        self._bytes -= size
        group = self._of[row["session_id"]]
        group.discard(turn_id)
        if not group:
            del self._of[row["session_id"]]

    def forget_session(self, session_id: str) -> None:
        """Something else than a flush of this control plane changed the Session."""
        for turn_id in list(self._of.get(session_id, ())):
            self.forget(turn_id)


def _size(row: dict[str, Any]) -> int:
    size = 500
    for name in _PAYLOADS:
        value = row.get(name)
        if value is not None:
            size += len(value)
    return size
