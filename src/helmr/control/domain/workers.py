"""How a worker stands, and when one may be removed. SPEC 11."""

from __future__ import annotations

from dataclasses import dataclass

from helmr.protocol.worker_shapes import WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What is with a worker that is to be removed: Computers that run or are on their way, and those with files but without a save."""

    running: int
    unsaved: int


def may_remove(leaving: Leaving) -> bool:
    """Whether nothing would be lost with it. Whoever wants it gone all the same says so by force."""
    return not leaving.running and not leaving.unsaved


def state_of(*, alive: bool, draining: bool, running: int, removing: bool, removed: bool, linked: bool = True) -> WorkerState:
    """Its state's name. Whoever is removed or about to be is that, whether it answers or not."""
    if removed:
        return "removed"
    if removing:
        return "removing"
    if not linked:
        return "enrolled"
    if not alive:
        return "away"
    if draining:
        return "draining" if running else "drained"
    return "connected"
