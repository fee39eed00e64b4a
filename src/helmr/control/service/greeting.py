"""A worker's hello: whether it is taken in, and what it is welcomed with. DESIGN I4, I11; SPEC [D5]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from helmr.control.service.core import Core
from helmr.control.service.histories import Histories
from helmr.control.service.worker_end import WorkerEnd
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, enrolments, workers
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.limits import LEASE_SECONDS, RENEW_SECONDS
from helmr.protocol.link import PROTOCOL, control

REMOVED: Final = "This worker was removed. Its host comes back with a state folder of its own, as another worker."
ENROLLED: Final = "A worker of that name or id is enrolled, and links with its own credential only: take another --name and --state."
REFUSED_BOUND: Final = "This worker was removed, or its enrolment does not allow the driver {driver!r}."

log = structlog.get_logger("helmr.greeting")


class Greeting:
    def __init__(self, core: Core, histories: Histories, plane_id: str) -> None:
        self._core = core
        self._histories = histories
        self._plane_id = plane_id

    async def take_in(self, end: WorkerEnd, said: Mapping[str, Any]) -> str | None:
        """The worker's id, leased to this control plane; None after a refusal, which closed the link."""
        if said.get("protocol") != PROTOCOL:
            told = (
                f"This control plane speaks link protocol {PROTOCOL}, the worker {said.get('protocol')}: run one version of Helmr on both."
            )
            return self._refuse(end, told)
        end.remembers = "history" in said
        end.weighed_under = await self._histories.served_since()  # before it is weighed: a server that comes between counts as another
        doubt = await self._histories.doubt(said)
        if doubt is not None:
            await self._histories.begin(doubt, instead_of=self._histories.incarnation)
            end.leave("the database has another history than this host: say hello again")
            return None
        worker = said["worker"]
        calls_itself = worker["id"] if is_id(worker.get("id", "")) else new_id()
        async with self._core.database.connection() as connection:
            known = await self._known(connection, end, worker, calls_itself)
            if isinstance(known, str):
                return self._refuse(end, known)
            worker_id, end.name = known["id"], known["name"]
            end.serves = None if known["environments"] is None else frozenset(str(one) for one in known["environments"])
            await workers.note_hello(connection, id=worker_id, said=calls_itself, version=str(worker.get("version") or "")[:64] or None)
            if worker.get("draining"):
                await computers.drain_worker(connection, id=worker_id)
        return str(worker_id)

    async def _known(self, connection: Connection, end: WorkerEnd, worker: Mapping[str, Any], calls_itself: str) -> Any:
        """The row of the worker that says hello, made or renewed; or why it is refused."""
        facts = {
            "driver": worker["driver"],
            "base": worker["base"],
            "cpu": float(worker["cpu"]),
            "memory": int(worker["memory"]),
            "control_plane": self._plane_id,
            "seconds": LEASE_SECONDS,
        }
        if end.bound is not None:
            return await enrolments.hello(connection, id=end.bound, **facts) or REFUSED_BOUND.format(driver=worker["driver"])
        if await workers.removed(connection, said=calls_itself):
            return REMOVED
        mine = await computers.worker_row(connection, id=calls_itself)
        if mine is not None and mine["enrolled"]:
            return ENROLLED
        if mine is not None and mine["name"] != worker["name"]:  # it has another name now
            await workers.rename(connection, id=calls_itself, name=worker["name"])
            mine = await computers.worker_row(connection, id=calls_itself)
        fresh = calls_itself if mine is None or mine["name"] == worker["name"] else new_id()
        return await computers.upsert_worker(connection, id=fresh, name=worker["name"], **facts) or ENROLLED

    @staticmethod
    def _refuse(end: WorkerEnd, told: str) -> None:
        log.warning("a worker is refused", message=told)
        end.link.send(control("refused", message=told))
        end.leave("refused")

    def welcome(self, end: WorkerEnd, said: Mapping[str, Any]) -> bool:
        """Answer the hello. False when its host follows another history of the database: it has to say what it has done there first."""
        incarnation = end.incarnation = self._histories.incarnation
        end.link.send(
            control(
                "welcome",
                worker=end.worker_id,
                lease_seconds=LEASE_SECONDS,
                renew_seconds=RENEW_SECONDS,
                control_plane=self._plane_id,
                incarnation=incarnation,
            )
        )
        end.held = {entry["computer"]: entry for entry in said.get("computers", ())}
        if "history" not in said or said["history"].get("current") == incarnation:
            return True
        end.inherits = said["history"].get("current") is not None
        return False
