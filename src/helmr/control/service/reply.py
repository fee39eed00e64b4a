"""What a write gives back: the JSON to send, and whether it is the answer of an earlier, identical request [S4]."""

from __future__ import annotations

from typing import NamedTuple


class Reply(NamedTuple):
    body: bytes
    replayed: bool = False


class StoredEvent(NamedTuple):
    """One event, and its JSON as readers get it."""

    sequence: int
    kind: str
    body: bytes
