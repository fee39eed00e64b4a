"""A worker that says hello: what it holds against what the database says. DESIGN I4, I6.

What fits is attached, what is stale is stopped, and what is gone is taken note of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import structlog

from helmr.control.service.core import Core
from helmr.control.service.deletions import Deletions
from helmr.control.service.draining import Draining
from helmr.control.service.histories import Histories
from helmr.control.service.processes import Processes
from helmr.control.service.sleeping import ASLEEP, HowSlept, Sleeping
from helmr.control.service.worker_end import WorkerEnd
from helmr.control.store.queries import computers
from helmr.protocol.link import control

_PRESENT: Final = ("starting", "restoring", "running", *ASLEEP)
"""Where a Computer may be while a worker has processes of it."""


log = structlog.get_logger("helmr.reconciling")


class Desk(Protocol):
    """Who speaks with workers: the links."""

    async def attach(self, end: WorkerEnd, computer_id: str, fence: int) -> None: ...
    async def place_on(self, computer_id: str) -> None: ...
    async def tell(self, end: WorkerEnd, row: Any, *, wake: bool = False) -> None: ...


class Reconciling:
    def __init__(
        self, core: Core, work: Processes, sleeping: Sleeping, deletions: Deletions, histories: Histories, draining: Draining, desk: Desk
    ) -> None:
        self._core = core
        self._processes = work
        self._sleeping = sleeping
        self._deletions = deletions
        self._histories = histories
        self._draining = draining
        self._desk = desk

    async def reconcile(self, end: WorkerEnd, held: Mapping[str, Mapping[str, Any]]) -> None:
        """What the worker holds against what the database says: attach what fits, stop what is stale, take note of what is gone."""
        async with self._core.database.connection() as connection:
            rows = {str(row["id"]): row for row in await computers.computers_of(connection, worker_id=end.worker_id)}
            drains = await computers.worker_drains(connection, id=end.worker_id)
        if not drains:
            await self._draining.resume(str(end.worker_id))
        held = {computer_id: self._read(entry, rows.get(computer_id)) for computer_id, entry in held.items()}
        for computer_id, entry in held.items():
            row = rows.get(computer_id)
            if row is not None and row["status"] == "deleting":
                continue
            leftover = await self._deletions.leftover(computer_id, entry["under"]) if row is None else None
            if leftover is not None:
                end.link.send(control("computer.destroy", computer=computer_id, fence=leftover))
            elif row is None or row["fence"] != entry["fence"] or row["residency"] not in _PRESENT:
                if entry.get("state") in ("running", "asleep"):
                    end.link.send(control("computer.stop", computer=computer_id, fence=entry["under"]))
            elif entry.get("state") == "running":
                await self._runs(end, computer_id, row)
            elif entry.get("state") == "asleep":
                await self._sleeps(end, row, str(entry.get("rung") or row["rung"] or "freeze"))
        for computer_id, row in rows.items():
            if row["status"] == "deleting":
                # Whatever it has of it: a worker says what it has destroyed once, and that may be lost.
                await self._desk.tell(end, row)
                continue
            entry = held.get(computer_id)
            there = entry is not None and entry.get("state") in ("running", "asleep") and entry["fence"] == row["fence"]
            running = there and entry is not None and entry.get("state") == "running"
            if row["residency"] in ("running", *ASLEEP) and not there:
                error = {"code": "computer_gone", "message": "The Computer stopped while its worker was away."}
                await self._processes.computer_lost(computer_id, row["fence"], "cold", error, end="history_lost" if end.inherits else None)
            elif row["residency"] == "unavailable":
                await self._processes.computer_lost(computer_id, row["fence"], "cold", None)
            elif row["residency"] in ("starting", "restoring") and not running:
                await self._desk.tell(end, row)
            await self._desk.place_on(computer_id)

    def _read(self, entry: Mapping[str, Any], row: Any) -> dict[str, Any]:
        """An entry of a hello in numbers of the present history [I11]: its fence, or -1, and the one `under` which it can be stopped."""
        fence = self._histories.number(entry["fence"], row)
        if fence is not None:
            return {**entry, "fence": fence, "under": fence}
        log.warning(
            "a host has a Computer of another history of the database; its files stay", computer=entry["computer"], fence=entry["fence"]
        )
        return {**entry, "fence": -1, "under": entry["fence"][1] if row is None else row["fence"]}

    async def _runs(self, end: WorkerEnd, computer_id: str, row: Any) -> None:
        """A worker that says hello has this Computer running."""
        if row["residency"] in ("starting", "restoring"):
            await self._processes.computer_running(computer_id, row["fence"])
        elif row["residency"] == "waking":
            await self._sleeping.woke(computer_id, row["fence"], row["rung"] or "", 0.0)
        elif row["residency"] in ("hibernating", "hibernated"):
            await self._desk.tell(end, row)
            return
        await self._desk.attach(end, computer_id, row["fence"])

    async def _sleeps(self, end: WorkerEnd, row: Any, rung: str) -> None:
        """A worker that says hello has this Computer asleep."""
        computer_id = str(row["id"])
        end.asleep.add(computer_id)
        if row["residency"] == "hibernating":
            await self._sleeping.slept(computer_id, row["fence"], HowSlept(rung=rung))
        elif row["residency"] != "hibernated":
            await self._desk.tell(end, row, wake=row["residency"] not in ("starting", "restoring"))
