"""A worker that is about to go: nothing new begins there, what runs may finish, all else is saved and put to sleep, and its lease is given
back. SPEC [C5], [C6], [C9]; UD-16.

    drain told -> its processes are parked, and claim no further Turn -> each idle Computer is saved, then sleeps -> leave told: lease over

Its Computers are the host's as before: a worker that comes back wakes them with all that they had; where none comes, they are restored
elsewhere from those saves once somebody wants them. A Turn that runs beyond the worker's patience goes on under hostd, and its Computer's
lease runs on: nobody else gets it before the host is given up (I8).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import structlog

from helmr.control.service.core import Core, Effects
from helmr.control.service.saves import Saves
from helmr.control.service.sleeping import SLEEP_SECONDS
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, drains, processes, saves

log = structlog.get_logger("helmr.draining")

ON_THE_WAY = ("starting", "restoring", "waking", "hibernating")


class Draining:
    def __init__(self, core: Core, taken: Saves) -> None:
        self._core = core
        self._saves = taken

    async def look(self, worker_id: str) -> dict[str, int]:
        """Do what can be done now; what is still waited for, by kind, without those of which there is none."""
        async with self._core.database.connection() as connection:
            rows = await computers.computers_of(connection, worker_id=worker_id)
        waits: Counter[str] = Counter()
        for row in rows:
            if row["residency"] == "running":
                waits += await self._quiet(str(row["id"]), worker_id)
            elif row["residency"] in ON_THE_WAY:
                waits["computers"] += 1
        async with self._core.database.connection() as connection:
            waits["saves"] += await drains.saves_under_way(connection, worker_id=worker_id)
        return {kind: count for kind, count in waits.items() if count}

    async def left(self, worker_id: str) -> bool:
        """It goes now. Its lease is over at once if nothing of it runs; else it runs on, since what runs there does too (I8)."""

        async def work(connection: Connection, effects: Effects) -> bool:
            await computers.lock_worker(connection, id=worker_id)
            return bool(await drains.give_back(connection, worker_id=worker_id))

        given_back = bool(await self._core.write("worker_left", work))
        log.info("a drained worker left", worker=worker_id, lease_given_back=given_back)
        return given_back

    async def resume(self, worker_id: str) -> None:
        """It is there again, and does not drain: what ran on meanwhile may claim Turns again."""
        async with self._core.database.connection() as connection:
            parked = await drains.parked_on(connection, worker_id=worker_id)
        for row in parked:
            await self._unpark(str(row["id"]))

    async def _quiet(self, computer_id: str, worker_id: str) -> Counter[str]:
        async def work(connection: Connection, effects: Effects) -> Counter[str]:
            locked = {row["id"] for row in await computers.members_to_lock(connection, computer_id=computer_id)}
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["residency"] != "running" or str(computer["worker_id"]) != worker_id:
                return Counter()
            await computers.processes_asleep(connection, computer_id=computer_id)
            members = await computers.members(connection, computer_id=computer_id)
            for row in (row for row in members if row["id"] in locked):
                runnable = row["status"] != "closed" and not row["held"] and row["claimed_turn"] + 1 < row["next_turn"]
                if runnable and row["process"] in ("none", "asleep") and row["running_turn"] is None and not row["wanting"]:
                    await processes.set_wanting(connection, id=row["id"], wanting=True)
            waits = Counter(turns=0)
            for row in members:
                waits["turns"] += row["running_turn"] is not None
                waits["processes"] += row["running_turn"] is None and row["process"] in ("starting", "ending")
            here = await drains.in_use(connection, computer_id=computer_id)
            waits["commands"], waits["streams"] = here["commands"], here["streams"]
            if any(waits.values()) or not all(row["id"] in locked for row in members):
                return waits
            if here["busy"]:
                return Counter(busy=1)
            return await self._save_or_sleep(connection, effects, computer)

        return await self._core.write("drain_computer", work)

    async def _save_or_sleep(self, connection: Connection, effects: Effects, computer: Any) -> Counter[str]:
        unsaved = await saves.is_unsaved(connection, id=computer["id"])
        if unsaved and not computer["save_failures"]:
            begun = await self._saves.begin_locked(connection, effects, computer, "drain")
            if begun != "not_now":
                return Counter()  # it is counted among the saves
        await computers.begin_sleep(connection, id=computer["id"], seconds=SLEEP_SECONDS)
        effects.computers.add(str(computer["id"]))
        return Counter(computers=1)

    async def _unpark(self, computer_id: str) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            members = await computers.members_to_lock(connection, computer_id=computer_id)
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["residency"] != "running":
                return
            await computers.processes_awake(connection, computer_id=computer_id)
            for row in members:
                if row["process"] == "asleep":
                    effects.claims.add(str(row["id"]))
                    effects.places.add(str(row["id"]))

        await self._core.write("unpark", work)
