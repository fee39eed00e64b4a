"""Collection never takes what a live or a being-written save needs, whatever is interrupted where [C5], [C7]."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule, run_state_machine_as_test
from tests.effort import examples

from helmr.objects.saves import StoredPack, Writing, plan_collection

START = datetime(2026, 1, 1, tzinfo=UTC)
GRACE = timedelta(hours=1)


@dataclass(eq=False)
class Attempt:
    """A worker at a save: it may be frozen for any time between two of its steps."""

    began_at: datetime
    base: frozenset[str]
    packs: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Reading:
    """What a collector saw at one moment."""

    live: list[frozenset[str]]
    writing: list[Writing]
    now: datetime


class Collecting(RuleBasedStateMachine):
    """The model: a store, saves that are live, and the record of saves being written, which a commit checks.

    A collector reads live saves and attempts, then lists packs, then plans, then deletes one at a time; any number of them stand still or
    crash anywhere, while saves begin, upload, commit, are given up or removed.
    """

    attempts = Bundle("attempts")
    readings = Bundle("readings")
    pending = Bundle("pending")

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.stored: dict[str, datetime] = {}
        self.live: list[frozenset[str]] = []
        self.writing: list[Attempt] = []
        self.made = 0

    @rule(hours=st.sampled_from([0.1, 0.5, 2, 50]))
    def time_passes(self, hours: float) -> None:
        self.now += timedelta(hours=hours)

    @rule(target=attempts, number=st.integers(0, 5))
    def begin(self, number: int) -> Attempt:
        self.now += timedelta(minutes=1)
        base = self.live[number % len(self.live)] if self.live and number else frozenset[str]()
        self.writing.append(attempt := Attempt(self.now, base))
        return attempt

    @rule(attempt=attempts)
    def upload(self, attempt: Attempt) -> None:
        """Also by one that was given up meanwhile: it doesn't know."""
        self.made += 1
        self.stored[f"pack{self.made}"] = self.now
        attempt.packs.add(f"pack{self.made}")

    @rule(attempt=consumes(attempts), part=st.integers(0, 3))
    def commit(self, attempt: Attempt, part: int) -> None:
        """Only one that still counts as being written; it needs its packs and some of its base's."""
        if attempt in self.writing:
            self.writing.remove(attempt)
            self.live.append(frozenset(attempt.packs) | frozenset(sorted(attempt.base)[part:]))

    @rule(attempt=attempts)
    def give_up(self, attempt: Attempt) -> None:
        if attempt in self.writing:
            self.writing.remove(attempt)

    @rule(number=st.integers(0, 5))
    def remove(self, number: int) -> None:
        if self.live:
            del self.live[number % len(self.live)]

    @rule(target=readings)
    def read(self) -> Reading:
        return Reading(list(self.live), [Writing(began_at=one.began_at, base=one.base) for one in self.writing], self.now)

    @rule(target=pending, reading=readings, done=st.integers(0, 100))
    def plan_and_delete_some(self, reading: Reading, done: int):
        """By a reading of any age; the first `done` go now, the rest whenever, or never."""
        packs = [StoredPack(name=name, stored_at=at) for name, at in self.stored.items()]
        plan = sorted(plan_collection(reading.live, packs, reading.now, GRACE, writing=reading.writing))
        for pack in plan[:done]:
            del self.stored[pack]
        return multiple(*plan[done:])

    @rule(pack=consumes(pending))
    def delete(self, pack: str) -> None:
        self.stored.pop(pack, None)

    @rule(number=st.integers(0, 3))
    def a_whole_save(self, number: int) -> None:
        attempt = self.begin(number)
        self.upload(attempt)
        self.commit(attempt, number)

    @rule(number=st.integers(0, 5))
    def a_collection_without_a_pause(self, number: int) -> None:
        self.now += timedelta(hours=number)
        self.plan_and_delete_some(self.read(), 100)

    @invariant()
    def nothing_needed_is_gone(self) -> None:
        for needed in self.live:
            assert needed <= self.stored.keys()
        for attempt in self.writing:
            assert attempt.base <= self.stored.keys()
            assert attempt.packs <= self.stored.keys()


def test_no_order_of_saves_collections_and_crashes_loses_a_pack_that_is_needed() -> None:
    run_state_machine_as_test(Collecting, settings=examples(100, stateful_step_count=40))


def test_what_nobody_needs_goes_once_it_is_old_enough() -> None:
    packs = [StoredPack(name=name, stored_at=START) for name in ("live", "base", "waste")]
    packs.append(StoredPack(name="young", stored_at=START + timedelta(hours=9, minutes=30)))
    writing = [Writing(began_at=START + timedelta(hours=8), base=frozenset({"base"}))]
    found = plan_collection([frozenset({"live"})], packs, START + timedelta(hours=10), GRACE, writing=writing)
    assert found == {"waste"}


@pytest.mark.parametrize("stored", [-1, 1])
def test_packs_of_a_save_that_is_still_written_stay_however_long_it_takes(stored: int) -> None:
    began = START + timedelta(hours=1)
    pack = StoredPack(name="pack", stored_at=began + timedelta(minutes=stored))
    found = plan_collection([], [pack], START + timedelta(days=9), GRACE, writing=[Writing(began_at=began)])
    assert found == ({"pack"} if stored < 0 else set())
