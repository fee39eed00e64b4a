"""Which worker takes a Computer, and which idle ones give way to those that wait. SPEC [C10]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from helmr.protocol.ids import ComputerId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A live worker's capacity, and what is reserved of it. `cpu` in cores, `memory` in bytes."""

    worker: WorkerId
    base: str
    cpu: float
    memory: int
    cpu_used: float
    memory_used: int
    environments: frozenset[str] | None = None
    """Those that it serves; None: all."""
    pressed: bool = False
    """Its disks are full: nothing comes there that isn't there already [C7]."""

    def serves(self, environment: str | None) -> bool:
        """Whether Computers of the Environment may come there; None: of one that isn't asked for."""
        return self.environments is None or environment is None or environment in self.environments

    def fits(self, cpu: float, memory: int) -> bool:
        return self.cpu_used + cpu <= self.cpu + 1e-6 and self.memory_used + memory <= self.memory


def choose_worker(
    rooms: Iterable[Room], cpu: float, memory: int, *, base: str | None = None, environment: str | None = None
) -> WorkerId | None:
    """The worker with the most memory left of those where the reservation fits; None when nothing fits. With a `base` only hosts of it,
    with an `environment` only those that serve it."""
    fitting = [room for room in rooms if room.fits(cpu, memory) and base in (None, room.base) and room.serves(environment)]
    if not fitting:
        return None
    return max(fitting, key=lambda room: (room.memory - room.memory_used, room.cpu - room.cpu_used, room.worker)).worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What a Computer takes of a worker. `worker` None: it has not been anywhere yet, or may go anywhere that has its `base`."""

    computer: ComputerId
    worker: WorkerId | None
    cpu: float
    memory: int
    base: str | None = None
    environment: str | None = None


def plan_room(rooms: Iterable[Room], idle: Sequence[Reservation], waiting: Iterable[Reservation]) -> list[ComputerId]:
    """The idle Computers that are to sleep so that those that wait find room, in the order in which they wait.

    `idle` is ordered by who has been idle longest: each waiting one takes the fewest of them on the worker where that costs the least
    recent. Nobody sleeps for one that can't fit even then.
    """
    free = {room.worker: room for room in rooms}
    left = list(idle)
    chosen: list[ComputerId] = []
    for wanted in waiting:
        here = [room for room in free.values() if _may_go(wanted, room)]
        worker = choose_worker(here, wanted.cpu, wanted.memory)
        if worker is None:
            giving = _giving(here, left, wanted)
            if giving is None:
                continue
            worker, sleepers = giving
            for sleeper in sleepers:
                left.remove(sleeper)
                chosen.append(sleeper.computer)
                free[worker] = _changed(free[worker], sleeper, -1)
        free[worker] = _changed(free[worker], wanted, 1)
    return chosen


def _may_go(wanted: Reservation, room: Room) -> bool:
    if not room.serves(wanted.environment):
        return False
    return (wanted.worker == room.worker if wanted.worker is not None else not room.pressed) and wanted.base in (None, room.base)


def _giving(rooms: Sequence[Room], idle: Sequence[Reservation], wanted: Reservation) -> tuple[WorkerId, list[Reservation]] | None:
    growing = {room.worker: room for room in rooms}
    taken: dict[WorkerId, list[Reservation]] = {worker: [] for worker in growing}
    for sleeper in idle:
        worker = sleeper.worker
        if worker is None or worker not in growing or sleeper.computer == wanted.computer:
            continue
        growing[worker] = _changed(growing[worker], sleeper, -1)
        taken[worker].append(sleeper)
        if growing[worker].fits(wanted.cpu, wanted.memory):
            return worker, _fewest(growing[worker], taken[worker], wanted)
    return None


def _fewest(room: Room, taken: Sequence[Reservation], wanted: Reservation) -> list[Reservation]:
    """Without those that turn out to be needless, the most recently idle first."""
    kept = list(taken)
    for sleeper in reversed(taken):
        without = _changed(room, sleeper, 1)
        if without.fits(wanted.cpu, wanted.memory):
            kept.remove(sleeper)
            room = without
    return kept


def _changed(room: Room, reservation: Reservation, sign: int) -> Room:
    return replace(room, cpu_used=room.cpu_used + sign * reservation.cpu, memory_used=room.memory_used + sign * reservation.memory)
