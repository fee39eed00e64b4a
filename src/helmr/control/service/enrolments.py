"""Workers are enrolled: a one-time token, exchanged for a credential of that worker alone. SPEC 11, 13, [S4].

The host makes its credential and sends the hash of it with the token, so that the same exchange may be repeated after a lost answer, and a
token that was taken by somebody else is seen: it is refused to the host that it was made for.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.core import Core, Effects, retry_of
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, enrolments
from helmr.protocol import jsontext
from helmr.protocol.duration import duration_ms
from helmr.protocol.errors import EnrolmentNotFound, EnrolmentRefused, Forbidden, InvalidValue, WorkerExists
from helmr.protocol.ids import WorkerId, is_definition_id, is_id, new_id
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire
from helmr.protocol.worker_shapes import EnrolledWorker, NewWorkerEnrolment, WorkerEnrolment, WorkerEnrolmentPage

TOKEN_PREFIX: Final = "hlmr_we_"
LIVES_MS: Final = 3_600_000
LONGEST_MS: Final = 7 * 24 * 3_600_000
RESERVED: Final = frozenset({"link", "self", "enrol", "enrolments"})
"""Names that stand in paths of the API."""


class Enrolments:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def create(
        self,
        principal: Principal,
        *,
        name: str | None,
        driver: str | None,
        environments: Sequence[str] | None,
        expires_in: str | None,
        idempotency_key: str | None,
    ) -> Reply:
        """A token with which one worker is enrolled, once, within an hour. It serves what the caller manages, or the named part of it.

        A token with a `name` also enrols the worker of that name again, over what it was. Raises `Forbidden`, `InvalidValue`.
        """
        principal.require("workers.manage")
        if name is not None:
            check_name(name)
        lives_ms = LIVES_MS if expires_in is None else _milliseconds(expires_in)
        asked = {"name": name, "driver": driver, "environments": environments and sorted(environments), "expires_in": lives_ms}
        retry = retry_of(principal, "workers.enrolments.create", "", idempotency_key, asked)

        async def work(connection: Connection, effects: Effects) -> Reply:
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            serves = await _serves(connection, principal, environments)
            token = TOKEN_PREFIX + secrets.token_urlsafe(32)
            row = await enrolments.insert_enrolment(
                connection,
                id=new_id(),
                environment_id=principal.environment_id,
                token_hash=_hash(token),
                name=name,
                driver=driver,
                environments=serves,
                created_by=jsontext.dumps(principal.by),
                lives_ms=lives_ms,
            )
            made = NewWorkerEnrolment(
                id=str(row["id"]),
                token=token,
                expires_at=render.time_text(row["expires_at"]),
                name=UNSET if name is None else name,
                driver=UNSET if driver is None else driver,
                environments=await _names(connection, serves),
            )
            await retry.remember(connection, jsontext.dumps(to_wire(replace(made, token=UNSET))), None, made=made.id)
            return Reply(jsontext.dumps(to_wire(made)))

        return await self._core.write("create_enrolment", work)

    async def list(self, principal: Principal, cursor: str | None, limit: int) -> WorkerEnrolmentPage:
        """Those that were made with keys of the Environment, all for a person; the newest first, of the last 30 days."""
        principal.require("workers.manage")
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            rows = await _listed(connection, principal, before=before, count=limit + 1)
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return WorkerEnrolmentPage(items=tuple(_shape(row) for row in rows[:limit]), next_cursor=following)

    async def revoke(self, principal: Principal, enrolment_id: str, idempotency_key: str | None) -> Reply:
        """Take a token no more; again, and of a used one, it changes nothing. Raises `EnrolmentNotFound`."""
        principal.require("workers.manage")
        retry = retry_of(principal, "workers.enrolments.revoke", enrolment_id, idempotency_key, {})

        async def work(connection: Connection, effects: Effects) -> Reply:
            if not is_id(enrolment_id) or not await _listed(connection, principal, id=enrolment_id):
                raise EnrolmentNotFound()
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            await enrolments.revoke_enrolment(connection, id=enrolment_id)
            (row,) = await _listed(connection, principal, id=enrolment_id)
            return await retry.remember(connection, jsontext.dumps(to_wire(_shape(row))), None)

        return await self._core.write("revoke_enrolment", work)

    async def enrol(self, token: str, *, credential_hash: str, name: str | None, driver: str | None) -> EnrolledWorker:
        """Exchange a token for a credential, of which only the hash is told. The same again gives the same.

        Raises `EnrolmentRefused`, `WorkerExists`, `InvalidValue`, and `Forbidden` for a driver that the token doesn't allow.
        """
        used_for = bytes.fromhex(credential_hash)

        async def work(connection: Connection, effects: Effects) -> EnrolledWorker:
            row = await enrolments.lock_enrolment(connection, token_hash=_hash(token))
            if row is None or (row["used_for"] != used_for if row["used_at"] is not None else not row["open"]):
                raise EnrolmentRefused()
            if row["used_at"] is None:
                if None not in (driver, row["driver"]) and driver != row["driver"]:
                    raise Forbidden(f"This token is for a worker with the driver {row['driver']}.")
                worker_id = await self._worker(connection, row, name)
                await enrolments.drop_unused(connection, worker_id=worker_id)
                await enrolments.insert_credential(connection, id=new_id(), worker_id=worker_id, token_hash=used_for)
                await enrolments.use_enrolment(connection, id=row["id"], worker_id=worker_id, used_for=used_for)
            else:
                worker_id = row["worker_id"]
            return await _enrolled(connection, worker_id)

        return await self._core.write("enrol_worker", work)

    async def own(self, worker_id: str) -> EnrolledWorker:
        """What the worker that asks was enrolled as."""
        async with self._core.database.connection() as connection:
            return await _enrolled(connection, worker_id)

    async def _worker(self, connection: Connection, row: Any, said: str | None) -> Any:
        """The row that the token's worker is: a new one, or, where the token names it, the one of that name."""
        name = row["name"] or said
        if name is None:
            raise InvalidValue("This token names no worker: say how it is called.")
        check_name(name)
        await computers.lock_placement(connection)  # two tokens for one name are used one after the other
        known = await enrolments.worker_named(connection, name=name)
        facts = {"driver": row["driver"], "environments": row["environments"]}
        if known is None:
            worker_id = new_id()
            await enrolments.insert_worker(connection, id=worker_id, name=name, **facts)
            return worker_id
        if row["name"] is None:
            raise WorkerExists(f"There is a worker {name!r} already.")
        if row["environments"] is not None and await enrolments.holds_others(connection, id=known["id"], environments=row["environments"]):
            raise WorkerExists(f"{name!r} has Computers of Environments that this token is not for: remove that worker first.")
        await enrolments.enrol_again(connection, id=known["id"], **facts)
        return known["id"]


def check_name(name: str) -> None:
    """Raises `InvalidValue` for what can't be an enrolled worker's name."""
    if not is_definition_id(name) or name in RESERVED:
        raise InvalidValue("A worker's name is 1 to 128 letters, digits, dots, dashes and underscores, and begins with a letter or digit.")


async def _serves(connection: Connection, principal: Principal, wanted: Sequence[str] | None) -> list[str] | None:
    """The ids of the Environments that a worker may serve; None: all. A key's worker serves the key's own: its host is told that
    Environment's Secrets, and a key may not reach those of another one [O1]."""
    if wanted is None:
        return None if principal.kind == "user" else [principal.environment_id]
    if not wanted or not all(name.isprintable() for name in wanted):
        raise InvalidValue("A worker serves at least one Environment, each written as project/environment.")
    found = {row["name"]: str(row["id"]) for row in await enrolments.environments_named(connection, names=list(wanted))}
    if principal.kind != "user" and {found.get(name) for name in wanted} != {principal.environment_id}:
        raise Forbidden("A key enrols workers for its own Environment only.")
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise InvalidValue(f"There is no Environment {missing[0]!r}; it is written as project/environment.")
    return sorted(found.values())


async def _listed(
    connection: Connection, principal: Principal, *, id: str | None = None, before: str | None = None, count: int = 1
) -> list[Any]:
    return await enrolments.list_enrolments(
        connection, environment_id=principal.environment_id, everything=principal.kind == "user", id=id, before=before, count=count
    )


def _shape(row: Any) -> WorkerEnrolment:
    return WorkerEnrolment(
        id=str(row["id"]),
        status="used" if row["used_at"] is not None else "open" if row["open"] else "ended",
        created_at=render.time_text(row["created_at"]),
        expires_at=render.time_text(row["expires_at"]),
        created_by=jsontext.loads(row["created_by"]),
        name=UNSET if row["name"] is None else row["name"],
        driver=UNSET if row["driver"] is None else row["driver"],
        environments=UNSET if row["environment_names"] is None else tuple(row["environment_names"]),
        worker_id=UNSET if row["worker_id"] is None else WorkerId(str(row["worker_id"])),
        used_at=UNSET if row["used_at"] is None else render.time_text(row["used_at"]),
    )


async def _enrolled(connection: Connection, worker_id: Any) -> EnrolledWorker:
    row = await enrolments.own_worker(connection, id=worker_id)
    return EnrolledWorker(
        worker_id=WorkerId(str(row["id"])),
        name=row["name"],
        driver=UNSET if row["only_driver"] is None else row["only_driver"],
        environments=await _names(connection, row["environments"]),
    )


async def _names(connection: Connection, ids: Sequence[Any] | None) -> Any:
    if ids is None:
        return UNSET
    return tuple(row["name"] for row in await enrolments.names_of(connection, ids=list(ids)))


def _milliseconds(text: str) -> int:
    try:
        lives = duration_ms(text, "expires_in")
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    if lives > LONGEST_MS:
        raise InvalidValue("An enrolment token lives 7 days at most.")
    return lives


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
