"""Turns that this control plane admitted or settled lately, so that waiting for one needs no read. DESIGN 7 (W1).

A terminal row is true for ever (I1). Any other is only where waiting starts: whoever answers with it reads the database first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

_TURNS: Final = 4096
_BYTES: Final = 16 << 20
_LARGEST: Final = 64 << 10


class Recent:
    """Rows by Turn id, the least recently touched forgotten first; bounded by count and by bytes of payload."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, tuple[int, dict[str, Any]]] = OrderedDict()
        self._of: dict[str, set[str]] = {}
        self._bytes = 0

    def put(self, turn_id: str, row: dict[str, Any]) -> None:
        """Remember a row: the columns of `turns`, and its Session's Environment."""
        self.forget(turn_id)
        size = _size(row)
        if size > _LARGEST:
            return
        self._rows[turn_id] = (size, row)
        self._of.setdefault(str(row["session_id"]), set()).add(turn_id)
        self._bytes += size
        while len(self._rows) > _TURNS or self._bytes > _BYTES:
            self.forget(next(iter(self._rows)))

    def get(self, turn_id: str) -> dict[str, Any] | None:
        found = self._rows.get(turn_id)
        return None if found is None else found[1]

    def change(self, turn_id: str, members: dict[str, Any]) -> None:
        """Columns of a remembered row changed."""
        found = self._rows.get(turn_id)
        if found is not None:
            self.put(turn_id, {**found[1], **members})

    def forget(self, turn_id: str) -> None:
        found = self._rows.pop(turn_id, None)
        if found is None:
            return
        size, row = found
        self._bytes -= size
        group = self._of[str(row["session_id"])]
        group.discard(turn_id)
        if not group:
            del self._of[str(row["session_id"])]

    def forget_session(self, session_id: str) -> None:
        """Something else than a flush of this control plane changed the Session."""
        for turn_id in list(self._of.get(session_id, ())):
            self.forget(turn_id)


def _size(row: dict[str, Any]) -> int:
    return 500 + sum(len(value) for value in row.values() if isinstance(value, bytes))
