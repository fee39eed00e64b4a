"""Renewals of workers: a lease for each Computer that the link has, and a mark by which another history of the database is known.

What a worker tells of its host comes with them. DESIGN I8, I11; SPEC [C7].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog

from helmr.control.service.core import Core
from helmr.control.service.draining import Draining
from helmr.control.service.histories import Histories
from helmr.control.service.pressure import PressureNotices
from helmr.control.service.save_orders import SaveOrders
from helmr.control.service.worker_credentials import WorkerCredentials
from helmr.control.service.worker_end import WorkerEnd
from helmr.control.store.queries import computers, workers
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.limits import LEASE_SECONDS
from helmr.protocol.link import control

ABOUT_ITS_COMPUTERS: Final = frozenset({"computer.state", "computer.silent", "computer.saved", "turn.repeated"})

log = structlog.get_logger("helmr.leases")


class Leases:
    def __init__(
        self,
        core: Core,
        histories: Histories,
        saving: SaveOrders,
        draining: Draining,
        pressed: PressureNotices,
        credentials: WorkerCredentials,
        plane_id: str,
    ) -> None:
        self._core = core
        self._histories = histories
        self._saving = saving
        self._draining = draining
        self._pressure = pressed
        self._credentials = credentials
        self._plane_id = plane_id

    async def drains(self, end: WorkerEnd) -> None:
        """It said so by what it refused, before a renewal did."""
        async with self._core.database.connection() as connection:
            await computers.drain_worker(connection, id=end.worker_id)

    async def asked(self, ends: Iterable[WorkerEnd]) -> None:
        """Go on with what somebody asked for: drains, new credentials; and refuse who was removed."""
        by_id = {end.worker_id: end for end in ends if end.worker_id is not None}
        async with self._core.database.connection() as connection:
            rows = await workers.asked_of(connection, ids=list(by_id))
        for row in rows:
            end = by_id[str(row["id"])]
            if row["removed"]:
                end.leave("this worker was removed")
                continue
            if row["rotates"] and not end.rotates:
                end.rotates = True
                end.link.send(control("credential.rotate"))
            if not row["drains"]:
                continue
            end.reluctant = True
            await self._saving.drain(end)
            await self._draining.look(str(row["id"]))

    async def may_say(self, end: WorkerEnd, said: Mapping[str, Any]) -> bool:
        """Whether what it says of a Computer is heard: a worker speaks of its own alone, whatever it knows of others' (I4).

        One that has what is another's by now is told to let go of it.
        """
        kind = said.get("t")
        if kind not in ABOUT_ITS_COMPUTERS:
            return True
        async with self._core.database.connection() as connection:
            if await workers.has(connection, worker_id=end.worker_id, computer_id=said["computer"]):
                return True
        log.warning("a worker speaks of a Computer that is not its", worker=end.name, computer=said["computer"], message=kind)
        if kind == "computer.state" and said["state"] in ("running", "asleep", "awake"):
            end.link.send(control("computer.stop", computer=said["computer"], fence=said["fence"]))
        elif kind == "computer.saved":
            end.link.send(control("save.forget", computer=said["computer"], save=said["save"]))
        return False

    async def offered(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        """It will use another credential of its own; whoever links with the shared one has none."""
        if end.bound is not None and await self._credentials.offer(end.bound, str(said["hash"])):
            end.link.send(control("credential.stored", hash=said["hash"]))

    async def left(self, end: WorkerEnd) -> None:
        """A drained worker goes: its lease is given back."""
        await self._draining.left(str(end.worker_id))
        end.link.send(control("left"))

    async def renew(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        """Lease to a worker what it has of this link; it is refused when another control plane holds it, or its database is another."""
        mark, heard = new_id(), said.get("mark")
        storage: Mapping[str, Any] = said.get("storage") or {}
        end.reluctant = bool(said.get("draining") or storage.get("pressed"))
        async with self._core.database.connection() as connection:
            if said.get("draining"):
                await computers.drain_worker(connection, id=end.worker_id)
            row = await computers.renew_worker(
                connection,
                id=end.worker_id,
                control_plane=self._plane_id,
                seconds=LEASE_SECONDS,
                mark=mark,
                heard=heard if is_id(heard or "") else None,
                total=storage.get("total"),
                free=storage.get("free"),
                pressed=storage.get("pressed"),
            )
        if row is None:
            end.leave("another control plane holds this worker now, or it was removed")
        elif not row["known"]:
            end.leave("this host heard of another history of the database: it says hello again")
        else:
            end.reluctant = end.reluctant or row["draining"]
            if row["turned"]:
                self._pressure.turned(end.name, storage)
            more: dict[str, Any] = {"mark": mark}
            if "since" in said:
                await self._histories.weigh(said["since"])
                end.weighed_under = row["served_since"]
            elif end.remembers and row["served_since"] != end.weighed_under:
                # The server was started anew, over files that may be a copy's: a mark would tell the host that all is well.
                more = {}
                end.link.send(control("renew"))
            if said.get("draining"):
                await self._saving.drain(end)
                more["waits"] = await self._draining.look(str(end.worker_id))
            leased = [seat.computer_id for seat in end.seats.values()] + list(end.asleep)
            end.link.send(control("renewed", lease_seconds=LEASE_SECONDS, computers=leased, **more))
