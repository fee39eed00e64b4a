"""Computers that stand still and are to run: where there is room, with the Secrets that they need. SPEC [C1], [C5], [C10], [X2]."""

from __future__ import annotations

from typing import Any, Literal

from helmr.control.domain.placement import choose_worker
from helmr.control.service.core import Effects
from helmr.control.service.restoring import Restoring
from helmr.control.service.sleeping import Sleeping, room_of
from helmr.control.service.vault import Vault
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, processes, secrets
from helmr.protocol import jsontext

Going = Literal["waiting", "full", "secret", "moving"]


class Starting:
    def __init__(self, sleeping: Sleeping, restoring: Restoring, vault: Vault) -> None:
        self._sleeping = sleeping
        self._restoring = restoring
        self._vault = vault

    async def set_going(self, connection: Connection, effects: Effects, computer: Any) -> Going:
        """Within a transaction that holds the Computer's lock: have it run if it stands still and there is room for it: on its host, or, if
        it is lost with that and there is a save, elsewhere [C5], [C10]. What ran on a lost one must all be told before it is restored.
        Without a Secret that it needs it does not run, and `waits_secret` says so [X2]."""
        residency = computer["residency"]
        if residency not in ("cold", "unavailable", "hibernated"):
            return "waiting"
        restorable = residency == "unavailable" and computer["save_id"] is not None and not await self._host_answers(connection, computer)
        if restorable and await processes.alive_on(connection, computer_id=computer["id"]):
            return "waiting"
        worker = await self.room(connection, computer, elsewhere=restorable)
        if worker is None:
            return "full"
        if residency == "hibernated":
            if await secrets.revoked_on(connection, computer_id=computer["id"]) is not None:
                return "secret"
            await self._sleeping.wake(connection, effects, str(computer["id"]))
            return "moving"
        lack = await self._vault.hand(connection, computer)
        if lack is not None:
            await secrets.wait_for(connection, computer_id=computer["id"], name=lack.name, reason=lack.reason)
            return "secret"
        if restorable:
            await self._restoring.begin(connection, effects, computer, worker, save_id=computer["save_id"])
        else:
            await computers.begin_start(connection, id=computer["id"], worker_id=worker)
            effects.computers.add(str(computer["id"]))
        return "moving"

    @staticmethod
    async def _host_answers(connection: Connection, computer: Any) -> bool:
        worker = await computers.worker_row(connection, id=computer["worker_id"])
        return worker is not None and worker["alive"]

    async def room(self, connection: Connection, computer: Any, *, elsewhere: bool = False) -> Any:
        """The worker that takes it, of those that serve its Environment: its own host when it has been somewhere, else the one with the
        most room [C10]. With `elsewhere` any host but its own; one made `from_host()` needs a host of the same base."""
        await computers.lock_placement(connection)
        rows = await computers.rooms(connection, soon=False)
        rooms = [room_of(row) for row in rows if not row["pressed"] or row["id"] == computer["worker_id"]]
        if computer["worker_id"] is not None:
            rooms = [room for room in rooms if (room.worker == str(computer["worker_id"])) is not elsewhere]
        return choose_worker(
            rooms, computer["cpu"], computer["memory"], base=base_of(computer), environment=str(computer["environment_id"])
        )


def base_of(computer: Any) -> str | None:
    """The base that its host must have: None for one that was not made `from_host()`, or that was nowhere yet [A7]."""
    return computer["base"] if jsontext.loads(computer["template"])["image"]["base"] == "host" else None
