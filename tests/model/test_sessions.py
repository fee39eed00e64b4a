"""Random lives of trees of Sessions, on the real control plane and database, against the independent model. SPEC 3, 4, 5; DESIGN 4.

Every rule does some things at once; then it is waited until nothing is under way, and what is seen must be one of the endings that the
model finds for some order of them: answers, states, timelines, what processes were told. After each, the invariants hold.

`make test` does a few of them (MODEL_EXAMPLES, 12); `make soak` (SOAK_SECONDS, 600) as many as fit, and prints what was done. A failure
tells the whole story. Real races may go another way when it is run again, so shorter stories are looked for only with MODEL_SHRINK=1.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.model.drawing import MESSAGE_ENDS, Drawing, NothingToDo
from tests.model.explore import Ending, TooMany, explore
from tests.model.house import UNKNOWN, House
from tests.model.model import World
from tests.model.operations import Answer, Cancel, Close, Create, Cut, Enqueue, Interrupt, Operation, Resume, Send, Spawn, StopTurn, bind
from tests.model.values import Frame, Outcome

from helmr.testing.database import DatabaseServer

T = TypeVar("T")

_PARTS = 4
_LONG = 8.0
"""Seconds of real time after which a life is not continued: real clocks would begin to matter (S13)."""
_TOO_LONG = 9.9
"""What is seen so many seconds after a life began is not judged: a cleanup time of 10 s may be really over by then."""
_SLOW = 0.7
"""After a step of so many seconds a back-off of one second may be over."""

_POINTS = (
    "flush", "place", "process_ended", "finish_close", "tie_up", "force_stop", "deadline", "close_idle", "computer_running",
    "computer_lost", "init.done", "message.started", "message.delivered", "message.rejected",
)  # fmt: skip
_POINT_OF: dict[type[Operation], str] = {
    Create: "create",
    Spawn: "spawn",
    Enqueue: "flush",
    Send: "send",
    StopTurn: "interrupt_turn",
    Interrupt: "interrupt_session",
    Resume: "resume",
    Close: "close",
    Cancel: "cancel",
    Answer: "respond",
}
_POINT_SAID = {
    "exit": "process_ended", "nonsense": "process_ended", "init_done": "init.done", "init_failed": "init.failed", "open": "messages.open",
    "ask": "question.ask", "withdraw": "question.withdraw", "stopping": "turn.stopping", "undrained": "turn.undrained",
}  # fmt: skip
_seeds = st.integers(0, 2**32 - 1)


class Lives(Drawing, RuleBasedStateMachine):
    """One life of an Environment. `house` and `loop` are given by the test."""

    house: House
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.begun = time.monotonic()
        self.worlds = [World()]
        """What may be: alike in all that was ever seen."""
        self.named = 0
        self.asked: list[tuple[Operation, Outcome]] = []
        """Accepted requests with an idempotency key, for exact retries."""
        self.released: list[tuple[str, str]] = []
        self.holds: dict[str, dict[str, str]] = {}
        self.done = False
        self.acts = 0
        self.dice = random.Random(0)
        self.told: list[str] = []
        """The story so far, for who must understand a failure: real races may go another way when it is run again."""

    @initialize(
        auto_init=st.sampled_from([True, True, True, False]),
        auto_exit=st.sampled_from([True, True, False]),
        planes=st.sampled_from([1, 1, 2]),
    )
    def begin(self, auto_init: bool, auto_exit: bool, planes: int) -> None:
        self.world.auto_init, self.world.auto_exit = auto_init, auto_exit
        self._run(self.house.begin(auto_init=auto_init, auto_exit=auto_exit, planes=planes))
        self.told.append(
            f"{planes} control planes; processes {'do' if auto_init else 'do not'} start, {'do' if auto_exit else 'do not'} end"
        )

    @property
    def world(self) -> World:
        return self.worlds[0]

    def teardown(self) -> None:
        if hasattr(self.house, "plane"):
            self._run(self.house.end())

    # --- rules: each does its thing with dice of its own, or something else when there is nothing to do it with -----

    @rule(seed=_seeds)
    def create(self, seed: int) -> None:
        self._act(self._create, seed)

    @rule(seed=_seeds)
    def spawn(self, seed: int) -> None:
        self._act(self._spawn, seed)

    @rule(seed=_seeds)
    def ask(self, seed: int) -> None:
        self._act(self._ask, seed)

    @rule(seed=_seeds)
    def ask_at_once(self, seed: int) -> None:
        self._act(self._ask_at_once, seed)

    @rule(seed=_seeds)
    def say(self, seed: int) -> None:
        self._act(self._say, seed)

    @rule(seed=_seeds)
    def ask_while_it_says(self, seed: int) -> None:
        self._act(self._ask_while_it_says, seed)

    @rule(seed=_seeds)
    def work(self, seed: int) -> None:
        self._act(self._work, seed)

    @rule(seed=_seeds)
    def ask_again(self, seed: int) -> None:
        self._act(self._ask_again, seed)

    @rule(seed=_seeds)
    def lose_a_reply(self, seed: int) -> None:
        self._act(self._lose_a_reply, seed)

    @rule(seed=_seeds)
    def pass_time(self, seed: int) -> None:
        self._act(self._pass_time, seed)

    @rule(seed=_seeds)
    def converse(self, seed: int) -> None:
        self._act(self._converse, seed)

    @rule(seed=_seeds)
    def misfortune(self, seed: int) -> None:
        self._act(self._misfortune, seed)

    def _act(self, action: Callable[[], None], seed: int) -> None:
        if self.done:
            return
        self.acts += 1
        self.dice = self.house.dice = random.Random(seed * 1000 + self.acts)
        try:
            if not self.world.sessions:
                self._create()
            else:
                action()
        except NothingToDo:
            open_ = [s for s in self.world.sessions.values() if s.status == "open"]
            if open_:
                self._round([Enqueue(session=self._any(open_).name, turn=self._name("t"))])
            elif self._room():
                self._create()

    def _create(self) -> None:
        if not self._room():
            raise NothingToDo
        self._round([self._some_create()])

    def _spawn(self) -> None:
        if not self._room():
            raise NothingToDo
        self._round([self._some_spawn()])

    def _ask(self) -> None:
        """One request; often the resume of a hold, since nothing runs under it, or the interrupt of a tree that partly closes."""
        partly = [s for s in self._not_closed() if s.status == "open" and any(o.status == "closing" for o in self.world.tree(s))]
        if partly and self._one_in(2):
            self._round([Interrupt(session=self._any(partly).name, idem=self._idem())])
            return
        held = [(name, hold) for name, holds in self.holds.items() for hold in sorted(holds)]
        if held and self._one_in(2):
            name, hold = self._any(held)
            self._round([Resume(session=name, hold=hold, idem=self._idem())])
        else:
            self._round([self._some_request()])

    def _ask_at_once(self) -> None:
        """Requests of several clients at once; one may be the same twice."""
        operations = [self._some_request() for _ in range(self.dice.randint(2, 3))]
        if operations[0].idem is not None and self._one_in(3):
            operations[1] = operations[0]
        self._round(operations, pauses=self._pauses())

    def _say(self) -> None:
        """One process says something."""
        self._round([], said=self._some_words(3))

    def _ask_while_it_says(self) -> None:
        """Requests and what a process says, at once."""
        said = self._some_words(2)
        operations = [self._some_request() for _ in range(self.dice.randint(1, 2))]
        if self.world.linked and self._one_in(6):
            operations[-1] = Cut()
        self._round(operations, said=said, pauses=self._pauses())

    def _work(self) -> None:
        """A process does its Turn, or starts: what mostly happens."""
        session = self._any([s for s in self._speakers() if s.running is not None or (s.process and s.process.state == "starting")])
        frames: list[Frame] = [("init_done",)]
        if session.running is not None:
            frames = [("output", session.running, self._name("o")), ("settled", session.running, "completed", self._name("r"))]
        self._round([], said=[(session.name, frame) for frame in frames])

    def _ask_again(self) -> None:
        """An exact retry gives the first receipt and does nothing [S4]."""
        operation, first = self._any(self.asked)
        answers = self._round([operation])
        assert answers in ([first], [UNKNOWN])

    def _lose_a_reply(self) -> None:
        """The database goes away around one commit; what was unknown to a client is asked again."""
        said = self._some_words(2) if self._speakers() and self._one_in(2) else []
        operations = [self._some_request()] if not said or self._one_in(2) else []
        points = [_POINT_OF[type(operation)] for operation in operations] + [_POINT_SAID.get(frame[0], "flush") for _, frame in said]
        point = self.dice.choice([*points, *points, *_POINTS])
        answers = self._round(operations, said=said, fault=f"{self.dice.choice(['before_commit', 'after_commit'])}:{point}")
        for operation, answer in zip(operations, answers, strict=True):
            if answer == UNKNOWN and operation.idem is not None and not self.done:
                self._round([operation])

    def _pass_time(self) -> None:
        """One kind of waiting is over."""
        what = self.dice.choice(["retry", "retry", "cleanup", "turn", "idle", "end", "init"])
        said = self._some_words(1) if self._speakers() and self._one_in(2) else []
        operations = [self._some_request()] if self._one_in(3) else []
        self._let_pass(what)
        self._round(operations, said=said)

    def _let_pass(self, what: str) -> None:
        for world in self.worlds:
            world.pass_time(what)
        self._happens(f"time passes: {what}", self.house.pass_time(what))

    def _lose_processes_in_a_row(self) -> None:
        """[S14]: a Session's process ends again and again, each time as soon as it may be started."""
        name = self._any([s for s in self._speakers() if s.status == "open"]).name
        for _ in range(4):
            session = self.world.sessions[name]
            if session.status == "open" and not session.queued:
                self._round([Enqueue(session=name, turn=self._name("t"))])
            if self.world.linked and self.house.process_of(name) is not None and not self.done:
                self._round([], said=[(name, ("exit", "process_lost"))])
                self._let_pass("retry")
                self._round([])

    def _converse(self) -> None:
        """A Turn and people at once: messages, questions, and what stops either."""
        session = self._any([s for s in self._speakers() if s.running is not None])
        turn = session.running or ""
        sent = [thing for thing in session.messages if thing.status in ("admitted", "started")]
        pending = [thing for thing in session.questions if thing.status == "pending"]
        frames: list[Frame] = []
        operations: list[Operation] = []
        if not session.accepting:
            frames.append(("open", turn))
        if self._one_in(2):
            operations.append(Send(session=session.name, turn=turn, message=self._name("m"), idem=self._idem()))
        if sent and self._one_in(2):
            frames.append(("message", self._any(sent).name, *self.dice.choice(MESSAGE_ENDS)))
        if session.parent is None and not pending and self._one_in(2):
            frames.append(("ask", turn, f"{turn}?{self._name('q')}"))
        if pending and self._one_in(2):
            question = self._any(pending).name
            operations.append(Answer(session=session.name, turn=turn, question=question, answer="yes", response="r1", idem=self._idem()))
        if self._one_in(3):
            stops = [StopTurn(session=session.name, turn=turn), Interrupt(session=session.name), Close(session=session.name)]
            operations.append(self.dice.choice([*stops, *stops[:2]]))
        elif self._one_in(4):
            frames.append(("settled", turn, *self.dice.choice([("completed", self._name("r")), ("failed", None)])))
        self._round(operations, said=[(session.name, frame) for frame in frames], pauses=self._pauses())

    def _misfortune(self) -> None:
        self.dice.choice(
            [self._change_the_link, self._change_the_link, self._restart, self._lose_a_computer, *[self._lose_processes_in_a_row] * 2]
        )()

    def _change_the_link(self) -> None:
        """The link is cut, comes back, or was cut for so long that the worker is lost (I8, [S14])."""
        if self.world.linked:
            self._set_linked(False)
            self._happens("the link is cut", self.house.cut())
        elif self._one_in(3):
            for world in self.worlds:
                for session in world.sessions.values():
                    world.lose_computer(session, "worker_lost")
            losing = self.house.lose_worker
            half = self._one_in(3)
            self._happens("the worker is lost", self.house.armed("after_commit:worker_lost", losing) if half else losing())
        else:
            self._set_linked(True)
            self._happens("the link is back", self.house.link())
        self._round([])

    def _set_linked(self, linked: bool) -> None:
        for world in self.worlds:
            world.linked = linked
            for session in world.sessions.values() if linked else ():
                if session.process is not None and session.process.state == "ending" and not session.process.told:
                    session.process.said = (("exit", "process_lost"),)  # the host doesn't know it: nobody told it to start one

    def _restart(self) -> None:
        self._happens("another control plane", self.house.restart())
        self._round([])

    def _lose_a_computer(self) -> None:
        session = self._any(self._speakers())
        if not self.world.linked:
            raise NothingToDo
        self._happens(f"the Computer of {session.name} stops", self.house.lose_computer(session.name))
        for world in self.worlds:
            world.lose_computer(world.sessions[session.name], "process_lost")
        self._round([])

    # --- one round --------------------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def _happens(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        self.told.append(what)
        self.house.performed[what.split(" s")[0]] += 1
        self._run(work)

    def _round(
        self,
        operations: list[Operation],
        *,
        said: Sequence[tuple[str, Frame]] = (),
        pauses: Sequence[int] = (),
        fault: str | None = None,
    ) -> list[Outcome]:
        began = time.monotonic()
        if began - self.begun > _LONG:
            self.done = True
            return [UNKNOWN for _ in operations]
        answers: list[Outcome] = []

        async def act() -> None:
            for session, frame in said:
                self.house.say(session, frame)
            asking = (self.house.ask(operation, pause) for operation, pause in zip(operations, (*pauses, *[0] * 9), strict=False))
            answers.extend(await asyncio.gather(*asking))
            await self.house.quiet()

        self._run(act() if fault is None else self.house.armed(fault, act))
        self.told += [f"{operation} -> {answer}" for operation, answer in zip(operations, answers, strict=True)]
        self.told += [f"{session} says {frame}" for session, frame in said]
        self.told += [f"lost at {fault}"] if fault else []
        self.told.append("--")
        views, self.holds_now = self._run(self.house.observe())
        if time.monotonic() - self.begun > _TOO_LONG:
            self.house.performed["lives that end early: a slow machine"] += 1
            self.done = True
            return answers
        self.house.check_told(views)
        maybe = frozenset(number for number, answer in enumerate(answers) if answer == UNKNOWN)
        endings: list[Ending] = []
        try:
            for before in self.worlds:
                before.impatient = time.monotonic() - began > _SLOW
                for session, frame in said:
                    process = before.sessions[session].process
                    assert process is not None
                    process.said += (frame,)
                endings += explore(before, operations, maybe)
        except TooMany:
            self.house.performed["lives that end early: too many orders"] += 1
            self.done = True
            return answers
        fitting = [world for found, world in endings if _same(found, answers, maybe) and world.view() == views]
        if not fitting:
            raise AssertionError("\n".join([*self.told, _explain(answers, views, endings)]))
        self._keep(fitting, operations, answers)
        return answers

    def _keep(self, fitting: list[World], operations: list[Operation], answers: list[Outcome]) -> None:
        self.worlds = list({world.state(): world for world in fitting}.values())
        for name in self.world.sessions:
            gone = set(self.holds.get(name, {})) - set(self.holds_now[name])
            self.released += [(name, hold) for hold in sorted(gone)]
            for world in self.worlds:
                bind(world.sessions[name], self.holds_now[name])
        self.holds = self.holds_now
        for operation, answer in zip(operations, answers, strict=True):
            if answer[0] == "ok" and operation.idem is not None and (operation, answer) not in self.asked:
                self.asked.append((operation, answer))


def _same(found: Sequence[Outcome | None], answers: Sequence[Outcome], maybe: frozenset[int]) -> bool:
    return all(number in maybe or one == other for number, (one, other) in enumerate(zip(found, answers, strict=True)))


def _explain(
    answers: Sequence[Outcome],
    views: dict[str, tuple[Any, ...]],
    endings: Sequence[tuple[Sequence[Outcome | None], World]],
) -> str:
    """What was seen, and how the nearest ending differs."""
    lines = ["No order of the last of these explains what is seen:"]

    def differences(ending: tuple[Sequence[Outcome | None], World]) -> list[str]:
        found, expected = ending[0], ending[1].view()
        apart = [f"  answer {one} instead of {other}" for one, other in zip(answers, found, strict=True) if one != other]
        for name in sorted(views.keys() | expected.keys()):
            for real, modelled in zip(views.get(name, ()), expected.get(name, ()), strict=False):
                if real != modelled:
                    apart.append(f"  {name}: seen {real}\n  {name}: instead of {modelled}")
        return apart

    return "\n".join(lines + min((differences(ending) for ending in endings), key=len, default=["  the model has no ending"]))


@pytest.fixture
def lives(database_server: DatabaseServer, tmp_path: Path) -> Iterator[type[Lives]]:
    """The machine on a house of its own."""
    dsn = database_server.clone()
    with asyncio.Runner() as runner:
        house = House(dsn, tmp_path)
        runner.run(house.start())
        yield type("Lives", (Lives,), {"house": house, "loop": runner.get_loop()})
        runner.run(house.stop())
    database_server.drop(dsn)


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        verbosity=Verbosity.normal,
        phases=(Phase.generate, Phase.shrink) if os.environ.get("MODEL_SHRINK") else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(_PARTS))
def test_whatever_happens_to_sessions_is_what_the_rules_allow(lives: type[Lives], part: int) -> None:
    """[S1]-[S21], [E1], [E2], [Q3], [Q4], I1-I6. In parts, which run beside each other; each has dice of its own."""
    run_state_machine_as_test(lives, settings=_settings(int(os.environ.get("MODEL_EXAMPLES", "8")) // _PARTS, 30))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_long_lives_of_sessions(lives: type[Lives], capsys: pytest.CaptureFixture[str]) -> None:
    """The same for SOAK_SECONDS (600)."""
    end = time.monotonic() + float(os.environ.get("SOAK_SECONDS", "600"))
    while time.monotonic() < end:
        run_state_machine_as_test(lives, settings=_settings(10, 60))
    with capsys.disabled():
        performed = lives.house.performed
        print(f"\n{sum(performed.values())} things happened:")
        for what, count in sorted(performed.items()):
            print(f"  {count:7} {what}")
