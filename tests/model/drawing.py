"""What is done next, drawn by dice from what is there: Sessions, requests, what processes say. Likely things more often."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tests.model.house import House
from tests.model.model import World
from tests.model.operations import Answer, Cancel, Close, Create, Enqueue, Interrupt, Operation, Resume, Send, Spawn, StopTurn
from tests.model.values import Frame, Session

T = TypeVar("T")

_MOST_SESSIONS = 10
_MOST_OPEN = 5
MESSAGE_ENDS = [
    ("started", None),
    ("started", None),
    ("delivered", None),
    ("rejected", "message_rejected"),
    ("rejected", "callback_failed"),
    ("rejected", "turn_closed"),
]


class NothingToDo(Exception):
    """There is nothing to do this with."""


class Drawing:
    """One life's dice, and what they are thrown over."""

    house: House
    dice: random.Random
    named: int
    released: list[tuple[str, str]]
    """Holds that were released, with their Sessions."""
    holds: dict[str, dict[str, str]]
    """The holds of each Session by id."""

    @property
    def world(self) -> World:
        raise NotImplementedError

    def _any(self, things: Sequence[T]) -> T:
        if not things:
            raise NothingToDo
        return self.dice.choice(things)

    def _one_in(self, number: int) -> bool:
        return self.dice.randrange(number) == 0

    def _pauses(self) -> list[int]:
        return [self.dice.randrange(12) for _ in range(3)]

    def _room(self) -> bool:
        """Whether another Session makes it no harder to try all orders."""
        return len(self.world.sessions) < _MOST_SESSIONS and len(self._not_closed()) < _MOST_OPEN

    def _not_closed(self) -> list[Session]:
        return [s for s in self.world.sessions.values() if s.status != "closed"]

    def _some_session(self) -> Session:
        """Mostly one that isn't closed."""
        return self._any(list(self.world.sessions.values()) if self._one_in(6) else self._not_closed() or [*self.world.sessions.values()])

    def _speakers(self) -> list[Session]:
        """Sessions whose process can say something."""
        found = [s for s in self.world.sessions.values() if s.process is not None and s.process.told]
        return [s for s in found if self.house.process_of(s.name) is not None]

    def _name(self, letter: str) -> str:
        self.named += 1
        return f"{letter}{self.named}"

    def _idem(self) -> str | None:
        return "k" if self._one_in(12) else self.dice.choice([None, self._name("k"), self._name("k")])

    def _input(self) -> str | None:
        return None if self._one_in(4) else self._name("t")

    def _some_create(self) -> Operation:
        return Create(session=self._name("s"), turn=self._input(), key="key" if self._one_in(3) else None, idem=self._idem())

    def _some_spawn(self) -> Operation:
        parent = self._some_session()
        return Spawn(session=parent.name, name=self._name("s"), turn=self._input(), idem=self._idem())

    def _some_request(self) -> Operation:
        session = self._some_session()
        name, idem = session.name, self._idem()
        kinds = ["enqueue"] * 5 + ["interrupt"] * 2 + ["close", "cancel"] + ["stop", "send"] * bool(session.turns)
        kinds += ["send"] * 3 * session.accepting + ["resume"] * 3 * bool(self.holds.get(name)) + ["released"] * bool(self.released)
        kinds += ["answer"] * 3 * bool(session.questions) + (["create"] + ["spawn"] * 2) * self._room()
        match self.dice.choice(kinds):
            case "send":
                return Send(session=name, turn=session.running or self._any(session.turns).name, message=self._name("m"), idem=idem)
            case "stop":
                turn = session.running if session.running and not self._one_in(4) else self._any(session.turns).name
                return StopTurn(session=name, turn=turn, idem=idem)
            case "interrupt":
                return Interrupt(session=name, idem=idem)
            case "resume":
                return Resume(session=name, hold=self._any(sorted(self.holds[name])), idem=idem)
            case "released":
                owner, hold = self._any(self.released)
                return Resume(session=owner, hold=hold, idem=idem)
            case "close":
                return Close(session=name, idem=idem)
            case "cancel":
                return Cancel(session=name, idem=idem)
            case "answer":
                thing = self._any(session.questions)
                answer, response = self.dice.choice(["yes", "no"]), self.dice.choice(["r1", "r2"])
                return Answer(session=name, turn=thing.turn, question=thing.name, answer=answer, response=response, idem=idem)
            case "create":
                return self._some_create()
            case "spawn":
                return self._some_spawn()
            case _:
                return Enqueue(session=name, turn=self._name("t"), idem=idem)

    def _some_words(self, most: int) -> list[tuple[str, Frame]]:
        """What one process says in one burst; nothing after its end."""
        session = self._any(self._speakers())
        frames: list[Frame] = []
        while len(frames) < most and (not frames or (frames[-1][0] != "exit" and self._one_in(2))):
            frames.append(self._some_frame(session))
        if frames[-1] == ("nonsense",) and self._one_in(2):
            frames.append(("exit", "process_lost"))
        return [(session.name, frame) for frame in frames]

    def _some_frame(self, session: Session) -> Frame:
        state = session.process.state if session.process is not None else "none"
        turn = session.running
        if (turn is None or self._one_in(10)) and session.turns:
            turn = self._any(session.turns).name
        kinds = ["exit", "nonsense"] + ["init_done", "init_done", "init_failed"] * (state == "starting")
        if turn is not None and state != "starting":
            kinds += [
                "output",
                "open",
                "open",
                "shut",
                "ask",
                "ask",
                "stopping",
                "undrained",
                "completed",
                "completed",
                "failed",
                "stopped",
            ]
            kinds += ["message"] * 4 * bool(session.messages) + ["withdraw"] * bool(session.questions)
        match self.dice.choice(kinds):
            case "exit":
                return ("exit", "process_lost" if state == "ending" else self.dice.choice(["process_lost", "out_of_memory", "drained"]))
            case "output":
                return ("output", turn, self._name("o"))
            case "ask":
                return ("ask", turn, f"{turn}?{self._name('q')}")
            case "withdraw":
                thing = self._any(session.questions)
                return ("withdraw", thing.turn, thing.name)
            case "stopping":
                return ("stopping", turn, self.dice.choice(["handler_failed", "message_handler_failed"]))
            case "message":
                open_ = [thing for thing in session.messages if thing.status in ("admitted", "started")]
                return ("message", self._any(open_ or session.messages).name, *self.dice.choice(MESSAGE_ENDS))
            case "completed":
                return ("settled", turn, "completed", self._name("r"))
            case "failed" | "stopped" as said:
                return ("settled", turn, said, None)
            case "open" | "shut" | "undrained" as said:
                return (said, turn)
            case said:
                return (said,)
