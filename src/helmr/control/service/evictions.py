"""Computers with a revoked Secret, on the links of this control plane: their proxies forget it at once, and they are stopped as soon as
what runs there has ended. SPEC [X2].

Nothing begins on them meanwhile (`exposures.py`), so that what runs ends one day; it is the owner's to end it sooner.
"""

from __future__ import annotations

from typing import Any, Final

import structlog

from helmr.control.service.core import Core, Effects
from helmr.control.service.processes import Lost, Processes
from helmr.control.service.roster import Roster
from helmr.control.service.vault import Vault
from helmr.control.service.worker_end import WorkerEnd
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers
from helmr.control.store.queries import secrets as statements
from helmr.protocol.errors import SecretUnavailable
from helmr.protocol.link import control
from helmr.protocol.wire import to_wire

STANDING: Final = ("running", "hibernated")

log = structlog.get_logger("helmr.secrets")


class Evictions:
    def __init__(self, core: Core, roster: Roster, work: Processes, vault: Vault) -> None:
        self._core = core
        self._roster = roster
        self._processes = work
        self._vault = vault

    async def look(self, end: WorkerEnd, computer_id: str | None = None) -> None:
        """Do what can be done now with the worker's Computers, or with one of them."""
        async with self._core.database.connection() as connection:
            rows = await statements.exposed_at(connection, worker_id=end.worker_id)
        for row in rows:
            found = str(row["id"])
            if computer_id in (None, found):
                await self._protect(end, found)
                await self._evict(end, found)

    async def _protect(self, end: WorkerEnd, computer_id: str) -> None:
        seat = end.seat_of(computer_id)
        if seat is None or not seat.handed.protected:
            return
        async with self._core.database.connection() as connection:
            fresh = await self._vault.handed(connection, await computers.computer_row(connection, id=computer_id))
        if fresh.revoked != seat.handed.revoked:
            seat.handed = fresh
            told = [to_wire(secret) for secret in fresh.protected]
            end.link.send(control("computer.protect", computer=computer_id, fence=seat.fence, protected_secrets=told))

    async def _evict(self, end: WorkerEnd, computer_id: str) -> None:
        async def work(connection: Connection, effects: Effects) -> tuple[int, dict[str, str], list[Lost]] | None:
            await computers.members_to_lock(connection, computer_id=computer_id)
            computer: Any = await computers.lock_computer(connection, id=computer_id)
            name = await statements.revoked_on(connection, computer_id=computer_id)
            if computer["residency"] not in STANDING or computer["status"] != "available" or name is None:
                return None
            await computers.processes_asleep(connection, computer_id=computer_id)
            if await statements.in_the_way(connection, computer_id=computer_id):
                return None
            error = {"code": SecretUnavailable.code, "message": f"The Secret {name} was revoked, so the Computer was stopped."}
            log.info("a Computer with a revoked Secret is stopped", computer=computer_id, secret=name)
            return computer["fence"], error, await self._processes.lose(connection, effects, computer, "cold", error, "drained")

        found = await self._core.write("evict", work)
        if found is None:
            return
        fence, error, lost = found
        seat = end.seat_of(computer_id)
        if seat is not None:
            self._roster.remove_seat(seat)
            end.seats.pop(seat.slot, None)
        end.asleep.discard(computer_id)
        # Before its host is told: what the host then says of the same end is no other cause of it.
        await self._processes.all_ended(lost, error)
        end.link.send(control("computer.stop", computer=computer_id, fence=fence))
