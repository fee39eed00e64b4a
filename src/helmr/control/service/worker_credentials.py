"""Credentials of one worker each, `hlmr_wk_...`. Only their hashes are known here; the worker makes them. SPEC 11, 13.

A worker offers the hash of its next credential over its link. The old one is taken until the new one is first used, and no more from then
on: whatever is lost on the way, the worker has one that is taken.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import structlog

from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import enrolments
from helmr.protocol.errors import Unauthenticated
from helmr.protocol.ids import new_id

SHARED: Final = "shared"
"""Who links with the installation's shared credential: any worker, by the name that it says."""
UNKNOWN: Final = "The worker credential is unknown."
HINT: Final = "Enrol the worker with `helmr worker enrol`, or set the same HELMR_WORKER_CREDENTIAL on both sides."

log = structlog.get_logger("helmr.workers")


class WorkerCredentials:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def worker_of(self, token: str) -> str:
        """The id of the one worker whose credential this is. The first use of one ends the worker's others. Raises `Unauthenticated`."""
        async with self._database.connection() as connection:
            row = await enrolments.credential_by_hash(connection, token_hash=hashlib.sha256(token.encode()).digest())
        if row is None:
            raise Unauthenticated(UNKNOWN, hint=HINT)
        if row["used_at"] is None:
            await self._first_use(row)
        return str(row["worker_id"])

    async def offer(self, worker_id: str, digest: str) -> bool:
        """The worker will use a credential of this hash next. False for what is no hash, or is another credential's. Idempotent."""
        try:
            hashed = bytes.fromhex(digest)
        except ValueError:
            return False
        if len(hashed) != hashlib.sha256().digest_size:
            return False

        async def work(connection: Connection) -> bool:
            known = await enrolments.credential_by_hash(connection, token_hash=hashed)
            if known is not None:
                return str(known["worker_id"]) == worker_id
            await enrolments.drop_unused(connection, worker_id=worker_id)
            await enrolments.insert_credential(connection, id=new_id(), worker_id=worker_id, token_hash=hashed)
            return True

        return await self._database.run(work)

    async def _first_use(self, row: Any) -> None:
        async def work(connection: Connection) -> bool:
            if await enrolments.first_use(connection, id=row["id"]) is None:
                return False
            await enrolments.revoke_others(connection, id=row["id"], worker_id=row["worker_id"])
            return True

        if await self._database.run(work):
            log.info("a worker uses a new credential", worker=row["name"])
