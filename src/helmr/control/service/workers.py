"""Workers: seen, drained, removed. SPEC 11, 13, 14, [C10].

Workers are the installation's. A key belongs to one Environment: it sees the workers that serve that, and manages those that serve no
other. People see and manage all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from helmr.control.domain.workers import Leaving, may_remove, state_of
from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.core import Core, Effects, retry_of
from helmr.control.service.draining import Draining
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, enrolments, workers
from helmr.protocol import jsontext
from helmr.protocol.errors import Forbidden, WorkerNotEnrolled, WorkerNotFound, WorkerRemoved
from helmr.protocol.ids import ComputerId, WorkerId, is_id
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire
from helmr.protocol.worker_shapes import (
    HeldComputer,
    Worker,
    WorkerCapacity,
    WorkerComputers,
    WorkerDetails,
    WorkerDrain,
    WorkerPage,
    WorkerStorage,
)

HELD: Final = 100
BATCH: Final = 50

Change = Callable[[Connection, Effects, Any], Awaitable[None]]


class Workers:
    def __init__(self, core: Core, draining: Draining) -> None:
        self._core = core
        self._draining = draining

    async def list(self, principal: Principal, cursor: str | None, limit: int) -> WorkerPage:
        """Newest first, without removed ones."""
        principal.require("workers.read")
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            rows = await _seen(connection, principal, before=before, count=limit + 1)
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return WorkerPage(items=tuple(Worker(**_members(row)) for row in rows[:limit]), next_cursor=following)

    async def get(self, principal: Principal, worker: str) -> WorkerDetails:
        """By its id or its name. Raises `WorkerNotFound`."""
        principal.require("workers.read")
        async with self._core.database.connection() as connection:
            return await self._details(connection, principal, await self._found(connection, principal, worker))

    async def drain(self, principal: Principal, worker: str, idempotency_key: str | None) -> Reply:
        """Have a worker take nothing new, and save and put to sleep what is there, until `undrain`; whatever of it restarts meanwhile.

        Raises `WorkerNotFound`, `WorkerRemoved`, `Forbidden`.
        """

        async def change(connection: Connection, effects: Effects, row: Any) -> None:
            await workers.ask_drain(connection, id=row["id"], by=jsontext.dumps(principal.by))

        return await self._change(principal, worker, "drain", {}, idempotency_key, change)

    async def undrain(self, principal: Principal, worker: str, idempotency_key: str | None) -> Reply:
        """Let a worker take what comes again. Raises as `drain`, and `WorkerRemoved` when it is being removed."""

        async def change(connection: Connection, effects: Effects, row: Any) -> None:
            if row["remove_asked_at"] is not None:
                raise WorkerRemoved("This worker is being removed, which can't be taken back.")
            await workers.end_drain(connection, id=row["id"])
            ended.append(str(row["id"]))

        ended: list[str] = []
        reply = await self._change(principal, worker, "undrain", {}, idempotency_key, change)
        for worker_id in ended:
            await self._draining.resume(worker_id)
        return reply

    async def remove(self, principal: Principal, worker: str, *, force: bool, idempotency_key: str | None) -> Reply:
        """Drain a worker, then refuse it for good; with `force` at once.

        Its Computers are restored elsewhere from their saves once somebody wants them, as those of a lost host are. Without `force` it
        stays until nothing runs there and there is a save of whatever has files there. Raises as `drain`; again changes nothing.
        """

        async def change(connection: Connection, effects: Effects, row: Any) -> None:
            await workers.ask_drain(connection, id=row["id"], by=jsontext.dumps(principal.by))
            await workers.ask_removal(connection, id=row["id"])
            if force:
                await workers.remove(connection, id=row["id"])

        return await self._change(principal, worker, "remove", {"force": force}, idempotency_key, change, again=True)

    async def rotate(self, principal: Principal, worker: str, idempotency_key: str | None) -> Reply:
        """Have an enrolled worker make itself a new credential, over its link; the old one is taken until the new one is used.

        Raises as `drain`, and `WorkerNotEnrolled`.
        """

        async def change(connection: Connection, effects: Effects, row: Any) -> None:
            if not row["enrolled"]:
                raise WorkerNotEnrolled()
            await enrolments.ask_rotation(connection, id=row["id"])

        return await self._change(principal, worker, "rotate", {}, idempotency_key, change)

    async def finish_removals(self) -> bool:
        """Remove the workers that are to go and hold nothing any more; whether there may be more of them.

        What never ran on a removed one may go anywhere from then on. Tokens that ended long ago are forgotten.
        """
        async with self._core.database.connection() as connection:
            await workers.release(connection)
            await enrolments.old_enrolments(connection)
            rows = await workers.leaving(connection, count=BATCH)
        for row in rows:
            await self._finish(row["id"])
        return len(rows) == BATCH

    async def _finish(self, worker_id: Any) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            row = await computers.lock_worker(connection, id=worker_id)
            await computers.lock_placement(connection)  # a placement that was decided before the drain is seen
            there = await workers.in_the_way(connection, id=worker_id)
            leaving = Leaving(running=there["running"], unsaved=there["unsaved"])
            if row is not None and row["removed_at"] is None and may_remove(leaving):
                await workers.remove(connection, id=worker_id)

        await self._core.write("finish_removal", work)

    async def _change(
        self, principal: Principal, worker: str, verb: str, asked: dict[str, Any], key: str | None, change: Change, *, again: bool = False
    ) -> Reply:
        """One change of a worker that the caller may manage; `again`: of a removed one it changes nothing."""
        principal.require("workers.manage")

        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await self._found(connection, principal, worker)
            retry = retry_of(principal, f"workers.{verb}", str(row["id"]), key, asked)
            if not row["alone"] and principal.kind != "user":
                raise Forbidden("This worker serves other Environments, too: a key of one of them can't decide on it.")
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            locked = await computers.lock_worker(connection, id=row["id"])
            if locked["removed_at"] is None:
                await change(connection, effects, locked)
            elif not again:
                raise WorkerRemoved()
            shown = await self._details(connection, principal, await self._found(connection, principal, str(row["id"])))
            return await retry.remember(connection, jsontext.dumps(to_wire(shown)), None)

        return await self._core.write(f"{verb}_worker", work)

    async def _found(self, connection: Connection, principal: Principal, worker: str) -> Any:
        """By its id or its name. Raises `WorkerNotFound`, the same for one that serves other Environments only [O1]."""
        named: dict[str, Any] = {"id": worker} if is_id(worker) else {"name": worker}
        rows = await _seen(connection, principal, **named)
        if not rows:
            raise WorkerNotFound()
        return rows[0]

    async def _details(self, connection: Connection, principal: Principal, row: Any) -> WorkerDetails:
        held = await workers.held(connection, worker_id=row["id"], environment_id=principal.environment_id, count=HELD)
        waits = UNSET
        if row["remove_asked_at"] is not None and row["removed_at"] is None:
            there = await workers.in_the_way(connection, id=row["id"])
            waits = {kind: there[kind] for kind in ("running", "unsaved") if there[kind]}
        return WorkerDetails(
            **_members(row),
            held=tuple(
                HeldComputer(
                    id=ComputerId(str(one["id"])),
                    template=one["template_id"],
                    residency=one["residency"],
                    cpu=one["cpu"],
                    memory=one["memory"],
                )
                for one in held
            ),
            waits=waits,
        )


async def _seen(
    connection: Connection,
    principal: Principal,
    *,
    id: str | None = None,
    name: str | None = None,
    before: str | None = None,
    count: int = 1,
) -> list[Any]:
    everything = principal.kind == "user"
    return await workers.seen(
        connection, environment_id=principal.environment_id, everything=everything, id=id, name=name, before=before, count=count
    )


def _members(row: Any) -> dict[str, Any]:
    """Of a `Worker`."""
    storage = UNSET
    if row["storage_total"] is not None:
        storage = WorkerStorage(total=row["storage_total"], free=row["storage_free"], pressed_since=_time(row["pressed_since"]))
    return {
        "id": WorkerId(str(row["id"])),
        "name": row["removed_name"] or row["name"],
        "state": state_of(
            alive=row["alive"],
            draining=row["draining"],
            running=row["running"],
            removing=row["remove_asked_at"] is not None,
            removed=row["removed_at"] is not None,
            linked=row["control_plane"] is not None,
        ),
        "driver": row["driver"],
        "credential": "own" if row["enrolled"] else "shared",
        "rotating": row["rotate_asked_at"] is not None,
        "capacity": WorkerCapacity(cpu=row["cpu"], memory=row["memory"], cpu_used=row["cpu_used"], memory_used=row["memory_used"]),
        "computers": WorkerComputers(running=row["running"], sleeping=row["sleeping"], stopped=row["stopped"]),
        "silent_seconds": round(max(0.0, row["silent_seconds"]), 3),
        "lease_until": render.time_text(row["lease_until"]),
        "created_at": render.time_text(row["created_at"]),
        "version": UNSET if row["version"] is None else row["version"],
        "environments": UNSET if row["environment_names"] is None else tuple(row["environment_names"]),
        "storage": storage,
        "drain": _drain(row),
        "removed_at": _time(row["removed_at"]),
    }


def _drain(row: Any) -> Any:
    if not row["draining"] or row["removed_at"] is not None:
        return UNSET
    reason = "removing" if row["remove_asked_at"] is not None else "asked" if row["drain_asked_at"] is not None else "stopping"
    by = UNSET if row["drain_asked_by"] is None else jsontext.loads(row["drain_asked_by"])
    return WorkerDrain(reason=reason, since=_time(row["draining_since"]), by=by)


def _time(value: Any) -> Any:
    return UNSET if value is None else render.time_text(value)
