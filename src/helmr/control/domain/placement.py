"""Which worker takes a Computer. SPEC [C10]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from helmr.protocol.ids import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A live worker's capacity, and what is reserved of it. `cpu` in cores, `memory` in bytes."""

    worker: WorkerId
    base: str
    cpu: float
    memory: int
    cpu_used: float
    memory_used: int

    def fits(self, cpu: float, memory: int) -> bool:
        return self.cpu_used + cpu <= self.cpu + 1e-6 and self.memory_used + memory <= self.memory


def choose_worker(rooms: Iterable[Room], cpu: float, memory: int) -> WorkerId | None:
    """The worker with the most memory left of those where the reservation fits; None when nothing fits."""
    fitting = [room for room in rooms if room.fits(cpu, memory)]
    if not fitting:
        return None
    return max(fitting, key=lambda room: (room.memory - room.memory_used, room.cpu - room.cpu_used, room.worker)).worker
