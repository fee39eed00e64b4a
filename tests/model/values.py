"""What the model's world is made of: Sessions, their Turns, messages, questions, holds and processes. All go by the names that the test
gave them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Frame: TypeAlias = tuple[Any, ...]
"""What a process says: its kind, then its arguments."""
Outcome: TypeAlias = tuple[Any, ...]
"""("ok", ...) or ("refused", code)."""


@dataclass(slots=True)
class Turn:
    name: str
    status: str = "queued"
    code: str | None = None
    """Of a Turn that failed, or was interrupted by a loss."""
    result: Any = None
    response: Any = None

    def view(self) -> tuple[Any, ...]:
        return (self.name, self.status, self.code, self.result, self.response)


@dataclass(slots=True)
class Thing:
    """A message or a question of a Turn."""

    name: str
    turn: str
    status: str
    more: Any = None
    """Of an answered question: (response id, answer)."""


@dataclass(frozen=True, slots=True)
class Hold:
    kind: str
    by: str
    id: str | None = None
    """What the product calls it, once that was seen."""


@dataclass(slots=True)
class Process:
    state: str = "starting"
    told: bool = False
    """The host has been told to start it."""
    said: tuple[Frame, ...] = ()
    """What it said and nobody heard yet; its end comes last."""
    killed: bool = False
    """It is being killed: it dies once the host hears of it."""
    old_end: bool = False
    """The time to end is over."""
    old_init: bool = False


@dataclass(slots=True)
class Session:
    name: str
    parent: str | None
    root: str
    status: str = "open"
    reason: str | None = None
    turns: list[Turn] = field(default_factory=list[Turn])
    running: str | None = None
    mark: str | None = None
    mark_code: str | None = None
    accepting: bool = False
    messages: list[Thing] = field(default_factory=list[Thing])
    questions: list[Thing] = field(default_factory=list[Thing])
    holds: list[Hold] = field(default_factory=list[Hold])
    """Its own."""
    computer: str = "none"
    """none, assigned, running."""
    process: Process | None = None
    strikes: int = 0
    initialised: bool = False
    recovery: str | None = None
    waits: int = 0
    """Seconds of back-off before the next process; 0 for none."""
    long_idle: bool = False
    """Idle for the whole period after which it closes."""
    old_turn: bool = False
    """The running Turn's deadline is over."""
    old_mark: bool = False
    """The cleanup time of the mark is over."""
    openings: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])
    """How each process was opened: recovery kind and reason."""
    events: Counter[tuple[Any, ...]] = field(default_factory=Counter[tuple[Any, ...]])

    @property
    def queued(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.status == "queued"]

    def turn(self, name: str | None) -> Turn:
        return next(turn for turn in self.turns if turn.name == name)

    def log(self, kind: str, turn: str | None = None, *more: Any) -> None:
        self.events[kind, turn, *more] += 1

    def fork(self) -> Session:
        return replace(
            self,
            turns=[replace(turn) for turn in self.turns],
            messages=[replace(thing) for thing in self.messages],
            questions=[replace(thing) for thing in self.questions],
            holds=list(self.holds),
            process=None if self.process is None else replace(self.process),
            openings=list(self.openings),
            events=self.events.copy(),
        )

    def hidden(self) -> tuple[Any, ...]:
        """What an observer can't see, yet decides what follows."""
        p = self.process
        return (
            self.waits,
            self.long_idle,
            self.old_turn,
            self.old_mark,
            self.computer,
            None if p is None else (p.told, p.said, p.killed, p.old_end, p.old_init),
        )
