"""An independent, small model of Sessions, written from the rules alone: it imports nothing of the product. SPEC 3, 4, 5.

A `World` is a value with operations. Each operation of a client is one atomic step that is accepted or refused; what the product does by
itself (placing, starting a Turn, hearing a process, duties that are due) are steps too, `World.steps` says which are possible. What
happens at once may happen in any order: `explore.py` tries them all.

Nothing here knows of ids: Sessions, Turns, messages and questions go by the names that the test gave them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from tests.model.values import Hold, Outcome, Process, Session, Thing

Step: TypeAlias = tuple[str, str]
"""What the product may do next: the step and the Session."""

INTERRUPTED = ("turn_interrupted", "session_interrupted")


class World:
    """All Sessions of an Environment, the keys in use and the receipts given."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.keys: dict[str, str] = {}
        self.receipts: dict[tuple[str, str, str], tuple[Any, Outcome]] = {}
        self.linked = True
        self.auto_init = True
        """Processes finish `init` as soon as they start."""
        self.auto_exit = True
        """Processes exit as soon as they are told to end."""
        self.impatient = False
        """So much real time went by that a back-off may be over."""

    def fork(self) -> World:
        other = World()
        other.sessions = {name: session.fork() for name, session in self.sessions.items()}
        other.keys = dict(self.keys)
        other.receipts = dict(self.receipts)
        other.linked, other.impatient = self.linked, self.impatient
        other.auto_init, other.auto_exit = self.auto_init, self.auto_exit
        return other

    def view(self) -> dict[str, tuple[Any, ...]]:
        """What an observer sees of each Session."""
        return {name: self.view_of(session) for name, session in self.sessions.items()}

    def view_of(self, s: Session) -> tuple[Any, ...]:
        return (
            ("status", s.status, s.reason),
            ("turns", tuple(turn.view() for turn in s.turns)),
            ("running", s.running, s.mark, s.accepting),
            ("messages", tuple(sorted((thing.name, thing.status) for thing in s.messages))),
            ("questions", tuple(sorted((thing.name, thing.status, thing.more) for thing in s.questions))),
            ("holds", tuple(sorted(hold.kind for hold in s.holds)), len(self.applying(s))),
            ("idle", self.idle_since(s)),
            ("process", "none" if s.process is None else s.process.state, s.strikes, s.waits > 0),
            ("openings", tuple(s.openings)),
            ("events", tuple(sorted(s.events.items(), key=repr))),
        )

    def state(self) -> tuple[Any, ...]:
        """All of it, as a value that can be compared."""
        return (self.linked, *((name, self.view_of(s), s.hidden()) for name, s in self.sessions.items()))

    # --- what the rules derive --------------------------------------------------------------------------------------

    def applying(self, s: Session) -> list[str]:
        """The kinds of the holds that apply: its own, and interrupts of those that own it [S16]."""
        if s.status == "closed":
            return []
        found = [hold.kind for hold in s.holds]
        above = s.parent
        while above is not None:
            found += [hold.kind for hold in self.sessions[above].holds if hold.kind == "interrupt"]
            above = self.sessions[above].parent
        return found

    def owned(self, s: Session) -> list[Session]:
        return [other for other in self.sessions.values() if other.parent == s.name]

    def tree(self, s: Session) -> list[Session]:
        """It and all that it owns, parents first."""
        found = [s]
        for owned in self.owned(s):
            found += self.tree(owned)
        return found

    def could_run(self, s: Session) -> bool:
        return s.status != "closed" and s.running is None and bool(s.queued) and not self.applying(s)

    def idle(self, s: Session) -> bool:
        """No running Turn, and none queued that could run [S21]."""
        return s.running is None and not (s.queued and not self.applying(s))

    def idle_since(self, s: Session) -> bool:
        """Whether a reader sees an idle instant."""
        return s.status != "closed" and all(self.idle(other) for other in self.tree(s) if other.status != "closed")

    def depth(self, s: Session) -> int:
        return 0 if s.parent is None else 1 + self.depth(self.sessions[s.parent])

    # --- pieces -----------------------------------------------------------------------------------------------------

    def mark(self, s: Session, cause: str, code: str | None = None) -> None:
        """[S11]: the first mark stands; pending questions are cancelled, no messages are taken."""
        s.mark, s.mark_code, s.accepting, s.old_turn, s.old_mark = cause, code, False, False, False
        s.log("turn.stopping", s.running, cause)
        self.cancel_questions(s)

    def cancel_questions(self, s: Session) -> None:
        for thing in s.questions:
            if thing.status == "pending":
                thing.status = "cancelled"
                s.log("question.cancelled", thing.turn, thing.name)

    def end_turn(self, s: Session, status: str, code: str | None = None, *, lost: bool = False) -> None:
        """The running Turn's one terminal event, after all that it leaves open has ended [E2]. What it never began was rejected since it
        was closed, when it ended by itself [S10]."""
        by_itself = status in ("completed", "failed") and s.mark is None and not lost
        for thing in s.messages:
            if thing.status in ("admitted", "started"):
                started = thing.status == "started"
                thing.status = "rejected"
                reason = "turn_closed" if by_itself and not started else "turn_terminated"
                s.log("message.rejected", thing.turn, thing.name, reason, "uncertain" if started else "not_delivered")
        self.cancel_questions(s)
        turn = s.turn(s.running)
        turn.status, turn.code = status, code
        if status == "failed":
            s.log("turn.failed", turn.name, code)
        elif status == "interrupted":
            s.log("turn.interrupted", turn.name, code if lost else s.mark, code if lost else None)
        else:
            s.log("turn." + status, turn.name)
        s.running = s.mark = s.mark_code = None
        s.accepting = s.old_turn = s.old_mark = False

    def end_marked(self, s: Session) -> None:
        """Its terminal status is the mark's."""
        if s.mark in INTERRUPTED:
            self.end_turn(s, "interrupted")
        else:
            self.end_turn(s, "failed", s.mark_code)

    def cancel_queued(self, s: Session) -> None:
        for turn in s.queued:
            turn.status = "cancelled"
            s.log("turn.cancelled", turn.name)

    def closed(self, s: Session, reason: str) -> None:
        """It has no holds any more, and its process ends [S20]."""
        s.status, s.reason, s.holds, s.waits, s.long_idle = "closed", reason, [], 0, False
        s.log("session.closed", None, reason)
        if s.process is not None and s.process.state != "ending":
            s.process.state, s.process.old_end, s.process.old_init = "ending", False, False

    def place_hold(self, s: Session, kind: str, by: str) -> None:
        """What a hold comes to block in a closing Session is cancelled [S18]."""
        s.holds.append(Hold(kind, by))
        s.log("session.held", None, kind)
        for other in self.tree(s) if kind == "interrupt" else [s]:
            if other.status == "closing":
                self.cancel_queued(other)

    def begin_close(self, s: Session, reason: str) -> None:
        for other in self.tree(s):
            if other.status == "open":
                other.status, other.reason = "closing", reason
            if other.status == "closing":
                self.cancel_questions(other)
                if self.applying(other):
                    self.cancel_queued(other)
        self.finish(s.root)

    def finish(self, root: str) -> None:
        """Closing Sessions close once their own work and all that they own is done, children first [S18]."""
        for s in reversed(self.tree(self.sessions[root])):
            if s.status == "closing" and s.running is None and not s.queued and all(o.status == "closed" for o in self.owned(s)):
                self.closed(s, s.reason or "")

    def ended(self, s: Session, cause: str) -> None:
        """Its process and all that came of it are gone [S14]."""
        process = s.process
        if process is None:
            return
        told = process.state == "ending"
        s.process = None
        orderly = (told and cause in ("process_lost", "asked", "init_failed")) or cause == "drained"
        strike = not orderly and cause != "worker_lost"
        s.log("session.process_stopped" if orderly else "session.process_failed")
        if s.running is not None:
            code = cause if cause in ("worker_lost", "out_of_memory") else "process_lost"
            if s.mark is not None:
                self.end_marked(s)
            else:
                self.end_turn(s, "interrupted", code, lost=True)
        if strike:
            s.strikes += 1
            s.waits = 0 if s.status == "closed" else (1 if s.strikes == 1 else 4)
            s.recovery = "out_of_memory" if cause == "out_of_memory" else "process_lost"
            if s.strikes >= 3 and s.status != "closed":
                self.place_hold(s, "process_failed", "system")
        else:
            s.waits = 0
            s.recovery = "worker_lost" if cause == "worker_lost" else s.recovery
        self.finish(s.root)

    def force_stop(self, s: Session) -> None:
        """The cleanup failed: it settles as marked, its processes are killed, a person must look [S13]."""
        assert s.process is not None
        self.end_marked(s)
        s.recovery = "cleanup_failed"
        s.process.state, s.process.killed, s.process.old_end = "ending", True, True
        self.place_hold(s, "process_failed", "system")
        self.finish(s.root)

    # --- what happens to the host and to time -----------------------------------------------------------------------

    def lose_computer(self, s: Session, cause: str) -> None:
        if s.computer == "running":
            s.computer = "assigned"
        self.ended(s, cause)

    def pass_time(self, what: str) -> None:
        """One kind of waiting is over, everywhere."""
        for s in self.sessions.values():
            if what == "retry":
                s.waits = 0
            elif what == "cleanup":
                s.old_mark = s.mark is not None
            elif what == "turn":
                s.old_turn = s.running is not None and s.mark is None
            elif what == "idle":
                s.long_idle = s.status != "closed" and self.idle(s)
            elif s.process is not None:
                s.process.old_end |= what == "end" and s.process.state == "ending"
                s.process.old_init |= what == "init" and s.process.state == "starting"

    # --- what the product does by itself ----------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        for s in self.sessions.values():
            yield from ((step, s.name) for step in self._steps_of(s))

    def _steps_of(self, s: Session) -> Iterator[str]:
        p = s.process
        if s.waits and self.impatient:
            yield "patience"
        if self.could_run(s) and p is None and not s.waits:
            if s.computer == "none":
                yield "assign"
            elif s.computer != "running" and self.linked:
                yield "boot"
            elif s.computer == "running":
                yield "place"
        if p is not None and self.linked:
            if p.state == "starting" and not p.told:
                yield "tell"
            if p.said:
                yield "hear"
            if p.state == "ending" and (p.killed or p.old_end or self.auto_exit) and p.told and not _dead(p):
                yield "kill"
            if p.state == "starting" and p.old_init and p.told:
                yield "init_overdue"
        if self.could_run(s) and p is not None and p.state == "ready":
            yield "claim"
        if s.running is not None and s.mark is None and s.old_turn:
            yield "deadline"
        if s.mark is not None and s.old_mark:
            yield "force_stop"
        if s.status == "open" and all(other.long_idle for other in self.tree(s) if other.status != "closed"):
            yield "close_idle"

    def take(self, step: Step) -> None:
        name, s = step[0], self.sessions[step[1]]
        getattr(self, "_" + name)(s)
        self.settle_idleness()

    def settle_idleness(self) -> None:
        for s in self.sessions.values():
            if not self.idle(s):
                s.long_idle = False

    def _patience(self, s: Session) -> None:
        s.waits = 0

    def _assign(self, s: Session) -> None:
        s.computer = "assigned"
        s.log("computer.assigned")

    def _boot(self, s: Session) -> None:
        s.computer = "running"

    def _place(self, s: Session) -> None:
        s.process = Process()

    def _tell(self, s: Session) -> None:
        assert s.process is not None
        s.process.told = True
        if self.auto_init:
            s.process.said = (("init_done",),)
        s.openings.append(("reconstructed", s.recovery) if s.initialised else ("initial", None))

    def _claim(self, s: Session) -> None:
        turn = s.queued[0]
        turn.status, s.running = "running", turn.name
        s.log("turn.running", turn.name)

    def _deadline(self, s: Session) -> None:
        self.mark(s, "deadline", "deadline_exceeded")

    def _force_stop(self, s: Session) -> None:
        self.force_stop(s)

    def _kill(self, s: Session) -> None:
        assert s.process is not None
        s.process.killed = False
        s.process.said += (("exit", "process_lost"),)

    def _init_overdue(self, s: Session) -> None:
        self.ended(s, "init_timeout")

    def _close_idle(self, s: Session) -> None:
        self.begin_close(s, "idle")

    def _hear(self, s: Session) -> None:
        assert s.process is not None
        frame, s.process.said = s.process.said[0], s.process.said[1:]
        getattr(self, "_hear_" + frame[0])(s, *frame[1:])

    # --- what processes say -----------------------------------------------------------------------------------------

    def _hear_exit(self, s: Session, cause: str) -> None:
        self.ended(s, cause)

    def _hear_nonsense(self, s: Session) -> None:
        """It breaks the protocol: nothing of it is heard any more, it is killed."""
        assert s.process is not None
        exits = [frame for frame in s.process.said if frame[0] == "exit"]
        s.process.said = (exits[0] if exits else ("exit", "process_lost"),)

    def _hear_init_done(self, s: Session) -> None:
        if s.process is not None and s.process.state == "starting":
            s.log("session.process_started", None, "reconstructed" if s.initialised else "initial")
            s.process.state, s.process.old_init, s.initialised = "ready", False, True

    def _hear_init_failed(self, s: Session) -> None:
        self.ended(s, "init_failed")

    def _hear_output(self, s: Session, turn: str, text: str) -> None:
        if s.running == turn:
            s.log("turn.output", turn, text)

    def _hear_open(self, s: Session, turn: str) -> None:
        if s.running == turn:
            s.accepting = s.mark is None

    def _hear_shut(self, s: Session, turn: str) -> None:
        if s.running == turn:
            s.accepting = False

    def _hear_ask(self, s: Session, turn: str, name: str) -> None:
        if s.running != turn:
            return
        if s.parent is not None:
            self._hear_nonsense(s)
            return
        s.questions.append(Thing(name, turn, "pending"))
        s.log("question.asked", turn, name)
        if s.mark is not None or s.status != "open":
            self.cancel_questions(s)

    def _hear_withdraw(self, s: Session, turn: str, name: str) -> None:
        for thing in s.questions:
            if s.running == turn and thing.name == name and thing.status == "pending":
                thing.status = "cancelled"
                s.log("question.cancelled", turn, name)

    def _hear_message(self, s: Session, name: str, status: str, reason: str | None) -> None:
        for thing in s.messages:
            if thing.name == name and thing.status in ("admitted", "started") and thing.status != status:
                delivery = "uncertain" if thing.status == "started" and reason != "message_rejected" else "not_delivered"
                thing.status = status
                s.log("message." + status, thing.turn, name, *((reason, delivery) if status == "rejected" else ()))

    def _hear_stopping(self, s: Session, turn: str, cause: str) -> None:
        if s.running == turn and s.mark is None:
            self.mark(s, cause, cause)

    def _hear_undrained(self, s: Session, turn: str) -> None:
        if s.running == turn and s.mark is not None:
            self.force_stop(s)

    def _hear_settled(self, s: Session, turn: str, said: str, value: Any) -> None:
        if s.running != turn:
            return
        if s.mark is not None:
            if s.mark not in INTERRUPTED:
                s.strikes = 0
            self.end_marked(s)
        elif said == "completed":
            done = s.turn(turn)
            done.result = done.response = value
            self.end_turn(s, "completed")
            s.strikes = 0
        else:
            self.end_turn(s, "failed", "handler_failed")
            s.strikes = 0
        self.finish(s.root)


def _dead(process: Process) -> bool:
    return any(frame[0] == "exit" for frame in process.said)
