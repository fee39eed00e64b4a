"""What an Environment allows: its admission rate, how long closed Sessions' payloads and Computers are kept, how late a trigger fires.

SPEC [S5], [S22], [C9], [T3].

They hold for all control planes of an installation at once: they are rows, and act from the commit that changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import limits
from helmr.protocol.errors import AdmissionUnavailable, InvalidValue
from helmr.protocol.unset import UNSET, UnsetType

_MOST_BURST: Final = 1_000_000
_MOST_RATE: Final = 1_000_000.0
_LEAST_GRACE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimit:
    """`rate` tokens a second, saved up to `burst`; each creation and each enqueue takes one. Raises `InvalidValue`."""

    rate: float
    burst: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and 0 < self.rate <= _MOST_RATE):
            raise InvalidValue(f"An admission rate is over 0 and at most {_MOST_RATE:.0f} a second.")
        if not 1 <= self.burst <= _MOST_BURST:
            raise InvalidValue(f"An admission burst is 1 to {_MOST_BURST}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLimits:
    """None: without limit. When they are set, `UNSET` leaves what is there."""

    admission: AdmissionLimit | UnsetType | None = UNSET
    payload_retention_ms: int | UnsetType | None = UNSET
    computer_retention_ms: int | UnsetType | None = UNSET
    """For how long a Computer that was assigned by itself outlives its last Session [C9]."""
    trigger_computer_retention_ms: int | UnsetType | None = UNSET
    """The same of a Computer that was made for a trigger's firing."""
    trigger_grace_ms: int | UnsetType = UNSET
    """By how much a firing may be late, at least a minute [T3]. Raises `InvalidValue`."""

    def __post_init__(self) -> None:
        if self.trigger_grace_ms is not UNSET and self.trigger_grace_ms < _LEAST_GRACE_MS:
            raise InvalidValue("The grace of triggers is at least a minute.")


class Limits:
    """Limits by Environment, in transactions of their own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, environment_id: str) -> EnvironmentLimits:
        async with self._database.connection() as connection:
            row = await limits.limits_of(connection, environment_id=environment_id)
        admission = None if row["rate"] is None else AdmissionLimit(rate=row["rate"], burst=row["burst"])
        return EnvironmentLimits(
            admission=admission,
            payload_retention_ms=row["payload_retention_ms"],
            computer_retention_ms=row["computer_retention_ms"],
            trigger_computer_retention_ms=row["trigger_computer_retention_ms"],
            trigger_grace_ms=row["trigger_grace_ms"],
        )

    async def set(self, environment_id: str, wanted: EnvironmentLimits) -> None:
        async def work(connection: Connection) -> None:
            await set_limits(connection, environment_id, wanted)

        await self._database.run(work)


async def set_limits(connection: Connection, environment_id: str, wanted: EnvironmentLimits) -> None:
    """Set what is given, in the caller's transaction. A bucket that stays as it is keeps its level."""
    if wanted.admission is None:
        await limits.unlimit_admission(connection, environment_id=environment_id)
    elif wanted.admission is not UNSET:
        rate, burst = wanted.admission.rate, wanted.admission.burst
        await limits.limit_admission(connection, environment_id=environment_id, rate=rate, burst=burst)
    if wanted.payload_retention_ms is not UNSET:
        await limits.limit_retention(connection, environment_id=environment_id, payload_retention_ms=wanted.payload_retention_ms)
    if wanted.computer_retention_ms is not UNSET:
        await limits.limit_computers(connection, environment_id=environment_id, computer_retention_ms=wanted.computer_retention_ms)
    if wanted.trigger_computer_retention_ms is not UNSET:
        retention_ms = wanted.trigger_computer_retention_ms
        await limits.limit_trigger_computers(connection, environment_id=environment_id, retention_ms=retention_ms)
    if wanted.trigger_grace_ms is not UNSET:
        await limits.limit_trigger_grace(connection, environment_id=environment_id, grace_ms=wanted.trigger_grace_ms)


async def take_token(connection: Connection, environment_id: str) -> None:
    """One admission, in a transaction that has locked no Session yet (I3). Raises `AdmissionUnavailable`; a rollback gives it back."""
    if not await limits.lock_bucket(connection, environment_id=environment_id):
        return
    drawn = await limits.draw_token(connection, environment_id=environment_id)
    if not drawn["granted"]:
        raise AdmissionUnavailable(retry_after=(1 - drawn["level"]) / drawn["rate"])
