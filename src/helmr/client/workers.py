"""`client.workers`: the hosts that Computers run on. SPEC 12, [C10]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.worker_shapes import NewWorkerEnrolment, WorkerDetails, WorkerEnrolment, WorkerEnrolmentPage, WorkerPage


class Workers:
    """Workers by their ids or their names."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> WorkerPage:
        """A page of the workers that serve the Environment, the newest first. `limit` 1-100, 50 when omitted."""
        return read(WorkerPage, await self._transport.call("GET", "/v1/workers", query={"cursor": cursor, "limit": limit}))

    async def get(self, worker: str) -> WorkerDetails:
        """How a worker stands, and which of the Environment's Computers are with it. Raises `WorkerNotFound`."""
        return read(WorkerDetails, await self._transport.call("GET", f"/v1/workers/{segment(worker)}"))

    async def create_enrolment(
        self,
        *,
        name: str | None = None,
        driver: str | None = None,
        environments: Sequence[str] | None = None,
        expires_in: str | None = None,
        idempotency_key: str | None = None,
    ) -> NewWorkerEnrolment:
        """A token with which one worker is enrolled, once, within an hour (`expires_in`, at most "7d"), by `helmr worker enrol TOKEN`.

        It serves the `environments` named as project/environment, else all that the caller manages: a key's own, all for a person. With a
        `name` it also enrols the worker of that name again. The result has no `token` when the answer to an earlier attempt was lost: make
        another one. Raises `Forbidden`, `InvalidValue`.
        """
        body: dict[str, Any] = {
            "name": name,
            "driver": driver,
            "environments": environments and list(environments),
            "expires_in": expires_in,
        }
        told = {key: value for key, value in body.items() if value is not None}
        return read(NewWorkerEnrolment, await self._transport.write("/v1/workers/enrolments", told, idempotency_key))

    async def list_enrolments(self, *, cursor: str | None = None, limit: int | None = None) -> WorkerEnrolmentPage:
        """A page of the tokens of the last 30 days, without the tokens, the newest first. `limit` 1-100, 50 when omitted."""
        query = {"cursor": cursor, "limit": limit}
        return read(WorkerEnrolmentPage, await self._transport.call("GET", "/v1/workers/enrolments", query=query))

    async def revoke_enrolment(self, enrolment_id: str, *, idempotency_key: str | None = None) -> WorkerEnrolment:
        """Take a token no more. A worker that came of it stays: `remove` it. Raises `EnrolmentNotFound`."""
        path = f"/v1/workers/enrolments/{segment(enrolment_id)}/revoke"
        return read(WorkerEnrolment, await self._transport.write(path, {}, idempotency_key))

    async def rotate(self, worker: str, *, idempotency_key: str | None = None) -> WorkerDetails:
        """Have an enrolled worker make itself a new credential; the old one is taken until the new one is used. No Turn is cut for it.

        Raises as `drain`, and `WorkerNotEnrolled`.
        """
        return read(WorkerDetails, await self._transport.write(f"/v1/workers/{segment(worker)}/rotate", {}, idempotency_key))

    async def drain(self, worker: str, *, idempotency_key: str | None = None) -> WorkerDetails:
        """Have a worker take nothing new, and save and put to sleep what is there, until `undrain`. Returns at once: `state` tells more.

        Raises `WorkerNotFound`, `WorkerRemoved`, and `Forbidden` where it serves other Environments, too.
        """
        return read(WorkerDetails, await self._transport.write(f"/v1/workers/{segment(worker)}/drain", {}, idempotency_key))

    async def undrain(self, worker: str, *, idempotency_key: str | None = None) -> WorkerDetails:
        """Let a worker take what comes again. Raises as `drain`."""
        return read(WorkerDetails, await self._transport.write(f"/v1/workers/{segment(worker)}/undrain", {}, idempotency_key))

    async def remove(self, worker: str, *, force: bool = False, idempotency_key: str | None = None) -> WorkerDetails:
        """Drain a worker, then refuse it for good; with `force` at once. Its Computers are restored elsewhere from their saves.

        Without `force` it stays (`removing`) while something runs there, or has files there of which there is no save. Raises
        `WorkerNotFound`, and `Forbidden` as `drain`.
        """
        body = {"force": True} if force else {}
        return read(WorkerDetails, await self._transport.write(f"/v1/workers/{segment(worker)}/remove", body, idempotency_key))
