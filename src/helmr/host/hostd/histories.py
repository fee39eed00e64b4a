"""Which history of the database this host follows, and what a fence means in it. DESIGN I11.

A database that was restored, or lost its last commits in a fail-over, begins a new *incarnation*. Its fences may count the same numbers
again, so they are compared within one incarnation only: a fence of the incarnation that this host follows is newer than any of an
earlier one, and one of an incarnation that was left is refused for ever.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast

import structlog

from helmr.host.hostd import failure
from helmr.host.hostd.records import Fence, write_durably

KEPT: Final = 1000
"""How many incarnations that were left are remembered, the latest ones."""


_log = structlog.get_logger("helmr.hostd.histories")


class Histories:
    """Kept in one file of the state folder: a restart must not make a superseded control plane's word good again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        stored = _read(file)
        self.current: str | None = stored.get("current")
        self.superseded: list[str] = list(stored.get("superseded", ()))

    def describe(self) -> dict[str, Any]:
        return {"current": self.current, "superseded": self.superseded}

    def enter(self, incarnation: str) -> bool:
        """Follow this one from now on, durably. Whether another one was left for it. Raises `HistorySuperseded` for one that was left."""
        if incarnation in self.superseded:
            raise failure.HistorySuperseded(
                f"This host left the database history {incarnation} for a later one; a control plane of it decides nothing here any more."
            )
        before = self.current
        if before == incarnation:
            return False
        if before is not None:
            self.superseded = [*self.superseded, before][-KEPT:]
        self.current = incarnation
        write_durably(self._file, json.dumps(self.describe()).encode())
        return before is not None

    def is_earlier(self, owner: Fence | None) -> bool:
        """Whether a record's fence is of an incarnation that was left, so that any fence of the present one is newer."""
        return isinstance(owner, list) and owner[0] != self.current

    def check(self, fence: Fence, owner: Fence | None, computer: str) -> None:
        """Raise `FenceStale` for a fence older than `owner`, or of another incarnation than the present one; `InvalidRequest` for one that
        can't be compared."""
        if isinstance(fence, list):
            self._check_within(fence, owner, computer)
        elif isinstance(owner, list):
            raise failure.InvalidRequest(f"The fence {fence!r} names no incarnation, as {owner!r} does.")
        elif owner is not None and fence < owner:
            raise _stale(fence, owner, computer)

    def _check_within(self, fence: list[Any], owner: Fence | None, computer: str) -> None:
        if len(fence) != 2 or not isinstance(fence[0], str) or type(fence[1]) is not int:
            raise failure.InvalidRequest(f"The fence {fence!r} is no pair of incarnation and number.")
        if fence[0] != self.current:
            raise failure.FenceStale(f"The fence {fence} is of another database history than {self.current}.", current=owner)
        if isinstance(owner, list) and owner[0] == fence[0] and fence[1] < owner[1]:
            raise _stale(fence, owner, computer)


def _read(file: Path) -> dict[str, Any]:
    """What the file tells; nothing when it can't be read: the next hello tells the present history, and what it left is forgotten."""
    try:
        stored: Any = json.loads(file.read_bytes())
        if not isinstance(stored, dict):
            raise ValueError("it is no object")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        aside = file.with_name(f"{file.name}.damaged")
        file.replace(aside)
        _log.error("histories.damaged", file=str(aside), error=str(error))
        return {}
    return cast("dict[str, Any]", stored)


def _stale(fence: Fence, owner: Fence, computer: str) -> failure.FenceStale:
    return failure.FenceStale(f"The fence {fence} is older than {owner}, which owns {computer}.", current=owner)
