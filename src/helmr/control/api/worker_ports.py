"""What the API asks of the services about workers, as people see them. As in `services`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from helmr.protocol.shapes import Page
from helmr.protocol.worker_shapes import EnrolledWorker, Worker, WorkerDetails, WorkerEnrolment

if TYPE_CHECKING:
    from helmr.control.api.services import Receipt
    from helmr.control.service.principals import Principal


class Workers(Protocol):
    """Workers by id or name. A key sees those that serve its Environment, and decides on those that serve no other."""

    async def list(self, principal: Principal, cursor: str | None, limit: int) -> Page[Worker]: ...
    async def get(self, principal: Principal, worker: str) -> WorkerDetails: ...
    async def drain(self, principal: Principal, worker: str, idempotency_key: str | None) -> Receipt: ...
    async def undrain(self, principal: Principal, worker: str, idempotency_key: str | None) -> Receipt: ...
    async def rotate(self, principal: Principal, worker: str, idempotency_key: str | None) -> Receipt: ...
    async def remove(self, principal: Principal, worker: str, *, force: bool, idempotency_key: str | None) -> Receipt: ...


class Enrolments(Protocol):
    """The token of an enrolment is in the first answer only, and in no receipt."""

    async def create(
        self,
        principal: Principal,
        *,
        name: str | None,
        driver: str | None,
        environments: Sequence[str] | None,
        expires_in: str | None,
        idempotency_key: str | None,
    ) -> Receipt: ...
    async def list(self, principal: Principal, cursor: str | None, limit: int) -> Page[WorkerEnrolment]: ...
    async def revoke(self, principal: Principal, enrolment_id: str, idempotency_key: str | None) -> Receipt: ...
    async def enrol(self, token: str, *, credential_hash: str, name: str | None, driver: str | None) -> EnrolledWorker: ...
    async def own(self, worker_id: str) -> EnrolledWorker: ...
