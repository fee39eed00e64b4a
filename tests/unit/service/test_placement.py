"""Who gives way to those that wait. SPEC [C10]."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from helmr.control.domain.placement import Reservation, Room, choose_worker, plan_room

SIZES = st.integers(1, 4)


@st.composite
def situations(draw):
    """Rooms that hold exactly their idle Computers and some busy load, and who waits."""
    workers = [f"w{number}" for number in range(draw(st.integers(1, 3)))]
    idle = [
        Reservation(computer=f"i{number}", worker=draw(st.sampled_from(workers)), cpu=draw(SIZES), memory=draw(SIZES))
        for number in range(draw(st.integers(0, 6)))
    ]
    rooms = []
    for worker in workers:
        mine = [one for one in idle if one.worker == worker]
        cpu, memory = sum(one.cpu for one in mine) + draw(st.integers(0, 3)), sum(one.memory for one in mine) + draw(st.integers(0, 3))
        spare_cpu, spare_memory = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        rooms.append(Room(worker=worker, base="b", cpu=cpu + spare_cpu, memory=memory + spare_memory, cpu_used=cpu, memory_used=memory))
    waiting = [
        Reservation(computer=f"n{number}", worker=draw(st.sampled_from([None, *workers])), cpu=draw(SIZES), memory=draw(SIZES))
        for number in range(draw(st.integers(1, 3)))
    ]
    return rooms, idle, waiting


def after(rooms, gone):
    """The rooms when those are gone."""
    result = []
    for room in rooms:
        mine = [one for one in gone if one.worker == room.worker]
        cpu, memory = sum(one.cpu for one in mine), sum(one.memory for one in mine)
        result.append(replace(room, cpu_used=room.cpu_used - cpu, memory_used=room.memory_used - memory))
    return result


def fits(rooms, one):
    return choose_worker([room for room in rooms if one.worker in (None, room.worker)], one.cpu, one.memory) is not None


@given(situations())
def test_the_first_that_waits_fits_afterwards_whenever_any_set_of_idle_ones_could_make_it_fit(situation):
    rooms, idle, waiting = situation
    chosen = set(plan_room(rooms, idle, waiting[:1]))
    gone = [one for one in idle if one.computer in chosen]
    possible = any(fits(after(rooms, subset), waiting[0]) for size in range(len(idle) + 1) for subset in combinations(idle, size))
    assert fits(after(rooms, gone), waiting[0]) == possible
    if fits(rooms, waiting[0]) or not possible:
        assert not chosen, "nobody sleeps in vain"
    for one in gone:
        assert not fits(after(rooms, [other for other in gone if other is not one]), waiting[0]), "each that sleeps is needed"


@given(situations())
def test_later_ones_never_take_what_earlier_ones_need_and_nobody_sleeps_twice(situation):
    rooms, idle, waiting = situation
    chosen = plan_room(rooms, idle, waiting)
    assert len(chosen) == len(set(chosen))
    assert chosen[: len(plan_room(rooms, idle, waiting[:1]))] == plan_room(rooms, idle, waiting[:1])


def test_the_longest_idle_goes_first():
    room = Room(worker="w", base="b", cpu=3, memory=3, cpu_used=3, memory_used=3)
    idle = [Reservation(computer=name, worker="w", cpu=1, memory=1) for name in ("oldest", "older", "young")]
    assert plan_room([room], idle, [Reservation(computer="n", worker=None, cpu=1, memory=1)]) == ["oldest"]
    assert plan_room([room], idle, [Reservation(computer="n", worker=None, cpu=2, memory=2)]) == ["oldest", "older"]


def test_a_host_with_full_disks_makes_room_for_what_is_there_and_for_nobody_new():
    """[C7]: an idle Computer is not sent to sleep for one that could not come."""
    room = Room(worker="w", base="b", cpu=1, memory=1, cpu_used=1, memory_used=1, pressed=True)
    idle = [Reservation(computer="idle", worker="w", cpu=1, memory=1)]
    new = Reservation(computer="new", worker=None, cpu=1, memory=1)
    assert plan_room([room], idle, [new]) == []
    assert plan_room([replace(room, pressed=False)], idle, [new]) == ["idle"]
    assert plan_room([room], idle, [replace(new, worker="w")]) == ["idle"]
