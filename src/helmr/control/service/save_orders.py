"""Saves and restores on a worker's link: what it is told, and what it says. SPEC [C5]; messages in `protocol/link.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helmr.control.service.core import Core
from helmr.control.service.restoring import Restoring
from helmr.control.service.saves import Saves
from helmr.control.service.vault import Vault
from helmr.control.service.worker_end import WorkerEnd
from helmr.protocol import jsontext
from helmr.protocol.link import control


class SaveOrders:
    def __init__(self, core: Core, saves: Saves, restoring: Restoring, vault: Vault) -> None:
        self._core = core
        self._vault = vault
        self._saves = saves
        self._restoring = restoring

    async def tell(self, end: WorkerEnd, computer_id: str | None = None) -> None:
        """Tell the worker the saves that it is to take and was not told on this link: all, or of one Computer. It repeats what it knows."""
        if end.worker_id is None:
            return
        for order in await self._saves.orders(end.worker_id, computer_id):
            if order["save"] not in end.saves:
                end.saves.add(order["save"])
                end.link.send(control("computer.save", **order))

    async def drain(self, end: WorkerEnd) -> None:
        """The worker is about to go: what of it isn't saved is saved now; it is told so before its renewal is answered."""
        if end.worker_id is not None:
            await self._saves.begin_on(end.worker_id)
            await self.tell(end)

    async def saved(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        """`computer.saved`: what became of a save. The worker forgets it when it is told that this is stored."""
        await self._saves.saved(said)
        end.saves.discard(str(said["save"]))
        end.link.send(control("save.forget", computer=said["computer"], save=said["save"]))

    async def members(self, kind: str, computer: Any) -> dict[str, Any]:
        """What an order to a worker says of a Computer, beside which it is: all that its files and its memory are made of again, and the
        Secrets that it was handed."""
        if kind == "computer.start":
            said = {"environment": str(computer["environment_id"]), "template": jsontext.loads(computer["template"])}
            said |= {"restore": await self._restore_of(computer)} if computer["residency"] == "restoring" else {}
            async with self._core.database.connection() as connection:
                return said | (await self._vault.handed(connection, computer)).to_start()
        if kind in ("computer.sleep", "computer.wake"):
            async with self._core.database.connection() as connection:
                key = await self._saves.memory_key(connection, str(computer["id"]))
                handed = (await self._vault.handed(connection, computer)).to_start() if kind == "computer.wake" else {}
            return handed if key is None else handed | {"key": key}
        return {}

    async def _restore_of(self, computer: Any) -> dict[str, Any] | None:
        """The save from which a Computer is restored; None: it begins anew."""
        async with self._core.database.connection() as connection:
            return await self._restoring.order(connection, computer)
