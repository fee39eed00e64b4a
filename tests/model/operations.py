"""What clients may ask, and what the model answers. SPEC [S1]-[S7], [S15]-[S20], [Q3]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.model import World
from tests.model.values import Hold, Outcome, Session, Thing, Turn

ACCEPTED: Outcome = ("ok",)


def refused(code: str) -> Outcome:
    return ("refused", code)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One request. `idem` is its idempotency key: the retry identity is (operation, target, key), the request all else [S4]."""

    session: str
    idem: str | None = None

    @property
    def target(self) -> str:
        return self.session

    def root(self, world: World) -> str | None:
        """The tree that it concerns."""
        return world.sessions[self.session].root

    def ask(self, world: World) -> Outcome:
        """One atomic step: an exact retry first, then the rules; only what is accepted is remembered."""
        identity = (type(self).__name__, self.target, self.idem or "")
        known = world.receipts.get(identity) if self.idem is not None else None
        if known is not None:
            return known[1] if known[0] == self.request() else refused("idempotency_conflict")
        outcome = self.do(world)
        world.settle_idleness()
        if self.idem is not None and outcome[0] == "ok":
            world.receipts[identity] = (self.request(), outcome)
        return outcome

    def request(self) -> tuple[Any, ...]:
        return tuple(value for name, value in vars(self).items() if name != "idem")

    def do(self, world: World) -> Outcome:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Create(Operation):
    """A root Session, with a first Turn or none; `key` names it for ever [S1]-[S3]."""

    turn: str | None
    key: str | None = None

    @property
    def target(self) -> str:
        return ""

    def root(self, world: World) -> str:
        """None that is there."""
        return ""

    def do(self, world: World) -> Outcome:
        if self.key is not None and self.key in world.keys:
            return refused("session_key_conflict")
        if self.key is not None:
            world.keys[self.key] = self.session
        _begin(world, Session(self.session, None, self.session), self.turn)
        return ("ok", self.session, self.turn)


@dataclass(frozen=True, kw_only=True)
class Spawn(Operation):
    """A Session asks for one that it owns [M4]; refused once it closes [S18], [S19]."""

    name: str
    turn: str | None

    def do(self, world: World) -> Outcome:
        parent = world.sessions[self.session]
        if parent.status != "open":
            return refused("session_not_open")
        if world.depth(parent) >= 4:
            return refused("delegation_limit")
        _begin(world, Session(self.name, parent.name, parent.root), self.turn)
        return ("ok", self.name, self.turn)


@dataclass(frozen=True, kw_only=True)
class Enqueue(Operation):
    """[S6]."""

    turn: str

    def do(self, world: World) -> Outcome:
        session = world.sessions[self.session]
        if session.status != "open":
            return refused("session_not_open")
        _admit(session, self.turn)
        return ("ok", self.turn)


@dataclass(frozen=True, kw_only=True)
class Send(Operation):
    """[S7]: to exactly that Turn, or stored nowhere."""

    turn: str
    message: str

    @property
    def target(self) -> str:
        return self.turn

    def do(self, world: World) -> Outcome:
        session = world.sessions[self.session]
        if session.running != self.turn or not session.accepting or session.mark is not None:
            return refused("message_closed")
        session.messages.append(Thing(self.message, self.turn, "admitted"))
        session.log("message.admitted", self.turn, self.message)
        return ACCEPTED


@dataclass(frozen=True, kw_only=True)
class StopTurn(Operation):
    """[S15]."""

    turn: str

    @property
    def target(self) -> str:
        return self.turn

    def do(self, world: World) -> Outcome:
        session = world.sessions[self.session]
        if session.running != self.turn:
            return refused("turn_not_running")
        if session.mark is not None:
            return refused("turn_stopping")
        world.mark(session, "turn_interrupted")
        return ACCEPTED


@dataclass(frozen=True, kw_only=True)
class Interrupt(Operation):
    """[S16]: marks what runs in the open part of the tree, holds all of it."""

    def do(self, world: World) -> Outcome:
        session = world.sessions[self.session]
        if session.status != "open":
            return refused("session_not_open")
        session.log("session.interrupt")
        for other in world.tree(session):
            if other.status == "open" and other.running is not None and other.mark is None:
                world.mark(other, "session_interrupted")
        world.place_hold(session, "interrupt", "user")
        world.finish(session.root)
        return ACCEPTED


@dataclass(frozen=True, kw_only=True)
class Resume(Operation):
    """[S17]: releases exactly the named hold, on its own Session."""

    hold: str

    def do(self, world: World) -> Outcome:
        session = world.sessions[self.session]
        found = next((hold for hold in session.holds if hold.id == self.hold), None)
        if found is None:
            return refused("hold_not_found")
        session.holds.remove(found)
        session.log("session.resume")
        if found.kind == "process_failed":
            session.strikes = session.waits = 0
        return ACCEPTED


@dataclass(frozen=True, kw_only=True)
class Close(Operation):
    """[S18], [S20]."""

    def do(self, world: World) -> Outcome:
        session = world.sessions[self.session]
        if session.status == "open":
            session.log("session.close")
            world.begin_close(session, "close")
        return ("ok", session.status)


@dataclass(frozen=True, kw_only=True)
class Cancel(Operation):
    """[S19], [S20]."""

    def do(self, world: World) -> Outcome:
        session = world.sessions[self.session]
        if session.status != "closed":
            session.log("session.cancel")
            for other in reversed(world.tree(session)):
                if other.status == "closed":
                    continue
                if other.running is not None:
                    world.end_turn(other, "cancelled")
                world.cancel_queued(other)
                world.closed(other, "cancel")
            world.finish(session.root)
        return ("ok", session.status)


@dataclass(frozen=True, kw_only=True)
class Answer(Operation):
    """[Q3]: the first answer stands; the same response again is no other answer."""

    turn: str
    question: str
    answer: str
    response: str

    @property
    def target(self) -> str:
        return self.question

    def do(self, world: World) -> Outcome:
        session = world.sessions[self.session]
        thing = next(thing for thing in session.questions if thing.name == self.question)
        if thing.status == "cancelled":
            return refused("question_cancelled")
        if thing.status == "responded":
            return ACCEPTED if thing.more == (self.response, self.answer) else refused("question_already_responded")
        thing.status, thing.more = "responded", (self.response, self.answer)
        session.log("question.responded", self.turn, self.question, self.answer)
        return ACCEPTED


@dataclass(frozen=True, kw_only=True)
class Cut(Operation):
    """The link to the host is cut meanwhile: what its processes say waits until it is back (I6)."""

    session: str = ""

    def root(self, world: World) -> None:
        """It concerns every tree."""

    def do(self, world: World) -> Outcome:
        world.linked = False
        return ACCEPTED


def bind(session: Session, holds: dict[str, str]) -> None:
    """Give holds the ids (id to kind) that the product shows; alike ones without an id are interchangeable."""
    taken = {hold.id for hold in session.holds}
    for id_, kind in holds.items():
        if id_ not in taken:
            place = next(n for n, hold in enumerate(session.holds) if hold.kind == kind and hold.id is None)
            session.holds[place] = Hold(kind, session.holds[place].by, id_)


def _begin(world: World, session: Session, turn: str | None) -> None:
    world.sessions[session.name] = session
    if turn is not None:
        _admit(session, turn)


def _admit(session: Session, turn: str) -> None:
    session.turns.append(Turn(turn))
    session.log("turn.queued", turn)
