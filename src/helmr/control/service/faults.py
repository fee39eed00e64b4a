"""Named points where a test makes the process stop, fail or wait: `after_commit:flush`, ... (STYLE 18).

`HELMR_FAULT="after_commit:flush=kill"` kills the process at the first pass (`=kill@3`: the third). Nothing is armed otherwise, and
passing a point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import Final

_armed: Final[dict[str, Callable[[], None]]] = {}


def fault_point(name: str) -> None:
    """A place where crashes are tested."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


def fault_points(when: str, name: str, kinds: Iterable[str]) -> None:
    """`when:name`, then `when:name.kind` for each kind: a batch passes the points of what is in it."""
    if _armed:
        fault_point(f"{when}:{name}")
        for kind in kinds:
            fault_point(f"{when}:{name}.{kind}")


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` at each pass of the point, until `disarm`."""
    _armed[name] = action


def disarm(name: str) -> None:
    _armed.pop(name, None)


def arm_from_environment() -> None:
    """Arm what HELMR_FAULT names; for whole-process crash tests."""
    for text in filter(None, os.environ.get("HELMR_FAULT", "").split(",")):
        point, _, action = text.partition("=")
        kind, _, count = action.partition("@")
        if kind != "kill":
            raise ValueError(f"HELMR_FAULT knows only kill, not {kind!r}.")
        arm(point, _killer(int(count or "1")))


def _killer(passes: int) -> Callable[[], None]:
    left = [passes]

    def act() -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return act
