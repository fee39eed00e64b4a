"""Workers as they stand on the wire: how they are, what they have room for, what is with them. SPEC 11, [C10]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from helmr.protocol.ids import ComputerId, WorkerId
from helmr.protocol.shapes import Page
from helmr.protocol.states import Residency
from helmr.protocol.unset import UNSET, UnsetType

WorkerState = Literal["enrolled", "connected", "draining", "drained", "away", "removing", "removed"]
"""`enrolled`: it has not linked yet. `drained`: it takes nothing new, and nothing runs there. `away`: its lease is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """What it offers, and what is reserved of that by Computers that run. Cores and bytes."""

    cpu: float
    memory: int
    cpu_used: float
    memory_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerComputers:
    """How many Computers of all Environments are with it: those that run or are on their way, that sleep, and that are stopped."""

    running: int
    sleeping: int
    stopped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStorage:
    """Its fullest disk, in bytes. With `pressed_since` that is too full: nothing new begins there [C7]."""

    total: int
    free: int
    pressed_since: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDrain:
    """Why it takes nothing new: somebody asked for it, its process was told to stop, or it is being removed."""

    reason: Literal["asked", "stopping", "removing"]
    since: str | UnsetType = UNSET
    by: Mapping[str, Any] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker of the installation. Without `environments` it serves all; a key is told of its own Environment only. For `silent_seconds`
    it has not renewed its lease, which ends at `lease_until`. Its `credential` is its own once it was enrolled; `rotating`: it is to make
    itself another one."""

    id: WorkerId
    name: str
    state: WorkerState
    driver: str
    credential: Literal["own", "shared"]
    rotating: bool
    capacity: WorkerCapacity
    computers: WorkerComputers
    silent_seconds: float
    lease_until: str
    created_at: str
    version: str | UnsetType = UNSET
    environments: tuple[str, ...] | UnsetType = UNSET
    storage: WorkerStorage | UnsetType = UNSET
    drain: WorkerDrain | UnsetType = UNSET
    removed_at: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldComputer:
    """A Computer of the caller's Environment that is with a worker."""

    id: ComputerId
    template: str
    residency: Residency
    cpu: float
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDetails(Worker):
    """`held` are the Computers of the caller's Environment there, at most 100 of them, the latest first. `waits` says what keeps a worker
    from being removed: how many Computers still run there, and of how many there is no save."""

    held: tuple[HeldComputer, ...] = ()
    waits: Mapping[str, int] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPage(Page[Worker]):
    items: tuple[Worker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorkerEnrolment:
    """A token with which one worker is enrolled, once, until `expires_at`. `token` stands in the first answer only. Without a `name` the
    worker says one, without a `driver` it may have any, without `environments` it serves all."""

    id: str
    expires_at: str
    token: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    driver: str | UnsetType = UNSET
    environments: tuple[str, ...] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolledWorker:
    """What a worker was enrolled as. Members that are absent as in the enrolment."""

    worker_id: WorkerId
    name: str
    driver: str | UnsetType = UNSET
    environments: tuple[str, ...] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnrolment:
    """A token that was made, without the token. `used` tells of which worker; `ended` is one that expired or was revoked before that."""

    id: str
    status: Literal["open", "used", "ended"]
    created_at: str
    expires_at: str
    created_by: Mapping[str, Any]
    name: str | UnsetType = UNSET
    driver: str | UnsetType = UNSET
    environments: tuple[str, ...] | UnsetType = UNSET
    worker_id: WorkerId | UnsetType = UNSET
    used_at: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnrolmentPage(Page[WorkerEnrolment]):
    items: tuple[WorkerEnrolment, ...]
