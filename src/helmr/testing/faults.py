"""Faults that a test arms: the control plane dies or stands still at a named point of its work.

A point is `before_commit:WHAT` or `after_commit:WHAT`: WHAT's transaction is complete but for its commit, or committed, and nobody has been
told of it. A control plane that crashed has a successor on the same port at once, as under any process manager, and the client's
retries find it.

| WHAT | the transaction |
|---|---|
| `create` | a Session was created, with its first Turn |
| `flush.admit` | a Turn was admitted, and claimed when its Session was idle |
| `flush.claim` | a queued Turn started |
| `flush.append` | output was stored |
| `flush.settle` | a Turn ended, and the next one started |
| `place` | a Session got a Computer or a process |
| `init.done` | a process is ready |
| `process_ended` | a process is gone |
| `question.ask`, `respond` | a question was asked; a person answered |
| `send` | a message was accepted |
| `interrupt_turn`, `interrupt_session`, `resume`, `close`, `cancel` | a control was accepted |
| `fire_trigger` | a trigger's instant became a Session |
| `deadline`, `close_idle`, `force_stop` | a deadline passed; an idle Session was closed; a cleanup took too long |
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from helmr.control.service import faults
from helmr.testing.gate import Gate
from helmr.testing.threads import PATIENCE_SECONDS

WHAT: Final = (
    "create",
    "flush.admit",
    "flush.claim",
    "flush.append",
    "flush.settle",
    "place",
    "init.done",
    "process_ended",
    "question.ask",
    "respond",
    "send",
    "interrupt_turn",
    "interrupt_session",
    "resume",
    "close",
    "cancel",
    "deadline",
    "close_idle",
    "fire_trigger",
    "force_stop",
)
POINTS: Final = tuple(f"{when}:{what}" for what in WHAT for when in ("before_commit", "after_commit"))


class Fault:
    """One armed fault."""

    def __init__(self, point: str, action: Callable[[], None], at: int) -> None:
        self.point = point
        self.passes = 0
        """How often the point was passed."""
        self.reached = Gate()
        """Open once the fault has happened: `await fault.reached.wait()`."""
        self._action, self._at = action, at
        self._released = threading.Event()

    def release(self) -> None:
        """Let a control plane that is held go on. Idempotent."""
        self._released.set()

    def pass_(self) -> None:
        """The point is passed, by the thread of the control plane."""
        self.passes += 1
        if self.passes == self._at:
            faults.disarm(self.point)
            self.reached.open()
            self._action()

    def stand_still(self) -> None:
        """Wait for the release."""
        self._released.wait(PATIENCE_SECONDS)


class Faults:
    """`runtime.faults`. An armed fault that never happened fails the test: it would have proved nothing."""

    def __init__(self, crash: Callable[[], None]) -> None:
        self._crash = crash
        self._armed: list[Fault] = []

    def crash(self, point: str, *, at: int = 1) -> Fault:
        """Kill the control plane at the `at`-th pass of the point. It is replaced at once."""
        return self._arm(point, at, lambda fault: self._crash())

    def hold(self, point: str, *, at: int = 1) -> Fault:
        """Stop the control plane there, as SIGSTOP stops a process, until `release()`; nothing of it goes on meanwhile."""
        return self._arm(point, at, Fault.stand_still)

    def stop(self) -> list[str]:
        """Disarm everything; what never happened."""
        for fault in self._armed:
            faults.disarm(fault.point)
            fault.release()
        return [
            f"The fault at {fault.point} never happened: passed {fault.passes} times." for fault in self._armed if not fault.reached.is_open
        ]

    def _arm(self, point: str, at: int, action: Callable[[Fault], None]) -> Fault:
        if point not in POINTS:
            raise ValueError(f"{point!r} is no fault point; there are {', '.join(POINTS)}.")
        if any(fault.point == point and not fault.reached.is_open for fault in self._armed):
            raise ValueError(f"{point} is armed already.")
        fault = Fault(point, lambda: action(fault), at)
        self._armed.append(fault)
        faults.arm(point, fault.pass_)
        return fault
