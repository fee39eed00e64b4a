"""Computers for people: made by hand, listed, put to sleep, woken, recovered, deleted. SPEC [C1], [C6], [C9], [O1]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_args

from helmr.control.service import render
from helmr.control.service.asked import check_computer_key, decode_cursor, encode_cursor
from helmr.control.service.core import Core, Effects, notify_worker, retry_of
from helmr.control.service.deletions import Deletions
from helmr.control.service.exposures import require_secrets, why_not
from helmr.control.service.manifests import Manifests, made_of
from helmr.control.service.principals import Principal
from helmr.control.service.processes import Processes
from helmr.control.service.reply import Reply
from helmr.control.service.saves import Saves
from helmr.control.service.sessions import Sessions
from helmr.control.service.sleeping import Sleeping, require_available
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, deployments, processes, saves
from helmr.protocol import jsontext
from helmr.protocol.errors import (
    CapacityUnavailable,
    ComputerKeyConflict,
    ComputerNotFound,
    InvalidValue,
    NoCurrentDeployment,
    SaveUnavailable,
    TemplateNotFound,
)
from helmr.protocol.handing import read_bindings
from helmr.protocol.ids import ComputerId, DeploymentId, SaveId, is_id, new_id
from helmr.protocol.limits import SECRET_BINDINGS
from helmr.protocol.manifest import TemplateManifest
from helmr.protocol.saves import Save, SavePage
from helmr.protocol.secrets import SecretBinding
from helmr.protocol.shapes import (
    Computer,
    ComputerPage,
    ErrorInfo,
    SessionPage,
)
from helmr.protocol.states import ComputerStatus
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire

KEPT_SECONDS: Final = 60.0
"""How long a Computer that somebody woke runs at least, though it has no open Session."""

_ALL: Final = get_args(ComputerStatus)
_PRESENT: Final = tuple(status for status in _ALL if status != "deleted")


class Computers:
    def __init__(
        self, core: Core, manifests: Manifests, sessions: Sessions, sleeping: Sleeping, work: Processes, deletions: Deletions, taken: Saves
    ) -> None:
        self._core = core
        self._manifests = manifests
        self._sessions = sessions
        self._sleeping = sleeping
        self._processes = work
        self._deletions = deletions
        self._saves = taken

    async def create(
        self,
        principal: Principal,
        *,
        template: str,
        key: str | None,
        secrets: Sequence[Mapping[str, Any]] = (),
        idempotency_key: str | None,
    ) -> Reply:
        """A Computer of a Template of the current Deployment, cold until somebody needs it; it goes only by `delete` [C1], [C9].

        `secrets` are bindings beside the Template's, or in the place of those of the same variable or file; they must be there [X1], [X2].

        Raises `InvalidValue`, `SecretNotFound`, `NoCurrentDeployment`, `TemplateNotFound`, and `ComputerKeyConflict` with the occupant's
        `computer_id`: a key is unique within Environment and Template, until its Computer is deleted.
        """
        principal.require("computers.write")
        check_computer_key(key)
        retry = retry_of(
            principal,
            "computers.create",
            "",
            idempotency_key,
            {"template": template, "key": key, **({"secrets": list(secrets)} if secrets else {})},
        )
        own = _bindings(secrets, "The request")

        async def work(connection: Connection, effects: Effects) -> Reply:
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            deployment_id, found = await self._template(connection, principal, template)
            if own:
                await require_secrets(connection, principal.environment_id, [binding.name for binding in own])
                found = replace(found, secrets=_joined(found, own))
            computer_id = await self._insert(connection, principal, deployment_id, found, key)
            receipt = {"id": computer_id, "deployment_id": deployment_id, "template": found.id}
            return await retry.remember(connection, jsontext.dumps(receipt), None, made=computer_id)

        return await self._core.write("create_computer", work)

    async def get(self, principal: Principal, computer_id: str) -> Computer:
        """A Computer now, a deleted one too. Raises `ComputerNotFound`, the same for unknown and foreign ids [O1]."""
        principal.require("computers.read")
        async with self._core.database.connection() as connection:
            rows = await self._rows(connection, principal, id=computer_id, statuses=_ALL, count=1) if is_id(computer_id) else []
        if not rows:
            raise ComputerNotFound()
        return _computer(rows[0])

    async def list(
        self, principal: Principal, *, status: Sequence[ComputerStatus], template: str | None, cursor: str | None, limit: int
    ) -> ComputerPage:
        """Newest first; without a status, those that aren't deleted."""
        principal.require("computers.read")
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            rows = await self._rows(
                connection, principal, statuses=tuple(status) or _PRESENT, template_id=template, before=before, count=limit + 1
            )
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return ComputerPage(items=tuple(_computer(row) for row in rows[:limit]), next_cursor=following)

    async def members(self, principal: Principal, computer_id: str, cursor: str | None, limit: int) -> SessionPage:
        """Its Sessions, closed ones too, newest first. Needs `sessions.read` as well."""
        principal.require("computers.read")
        principal.require("sessions.read")
        async with self._core.database.connection() as connection:
            await _known(connection, principal, computer_id)
            return await self._sessions.on_computer(connection, principal, computer_id, cursor, limit)

    async def hibernate(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Reply:
        """Put it to sleep now, whatever its Agents' periods say; one that doesn't run stays as it is [C6].

        Raises `ComputerBusy` when somebody works on it or is about to, `ComputerDeleting`, `ComputerNotFound`.
        """

        async def work(connection: Connection, effects: Effects) -> Any:
            await self._sleeping.hibernate(connection, effects, computer_id)

        return await self._change(principal, "hibernate", computer_id, idempotency_key, work)

    async def wake(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Reply:
        """Have it run; without a Turn it sleeps again after its Agents' periods, without a Session it is stopped a minute later [C6].

        Raises `CapacityUnavailable` when no worker has room for it, `ComputerDeleting`, `ComputerNotFound`.
        """

        async def work(connection: Connection, effects: Effects) -> Any:
            computer = await computers.lock_computer(connection, id=computer_id)
            require_available(computer)
            await self._run(connection, effects, computer)

        return await self._change(principal, "wake", computer_id, idempotency_key, work)

    async def recover(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Reply:
        """Try again what failed: a Computer that could not be started, or stopped by itself, is started with the files that it has, and its
        Sessions need not wait for their back-off [S14], UD-39. One on which nothing failed stays as it is.

        Holds stay: each is released by its own name. Raises `CapacityUnavailable` when its host is away or has no room, `ComputerDeleting`,
        `ComputerNotFound`.
        """

        async def work(connection: Connection, effects: Effects) -> Any:
            members = await computers.members_to_lock(connection, computer_id=computer_id)
            computer = await computers.lock_computer(connection, id=computer_id)
            require_available(computer)
            backing_off = [row for row in members if row["retry_at"] is not None]
            for row in backing_off:
                await processes.try_now(connection, id=row["id"])
                effects.places.add(str(row["id"]))
            if computer["residency"] == "unavailable" or (computer["residency"] == "cold" and (computer["error"] or backing_off)):
                await self._run(connection, effects, computer)

        return await self._change(principal, "recover", computer_id, idempotency_key, work)

    async def save(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Reply:
        """Save its files now; the receipt names the save, which may have been under way [C5].

        Raises `SaveUnavailable`, `ComputerDeleting`, `ComputerNotFound`.
        """
        principal.require("computers.write")
        retry = retry_of(principal, "computers.save", computer_id, idempotency_key, {})

        async def work(connection: Connection, effects: Effects) -> Reply:
            await _known(connection, principal, computer_id)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            computer = await computers.lock_computer(connection, id=computer_id)
            require_available(computer)
            if await self._saves.begin_locked(connection, effects, computer, "request") == "not_now":
                raise SaveUnavailable()
            under_way = await saves.taking(connection, computer_id=computer_id)
            receipt = {"computer_id": computer_id, "save_id": str(under_way["id"])}
            return await retry.remember(connection, jsontext.dumps(receipt), None)

        return await self._core.write("save_computer", work)

    async def saves(self, principal: Principal, computer_id: str, cursor: str | None, limit: int) -> SavePage:
        """Its saves, newest first: failed ones and those that newer ones replaced too [C5]."""
        principal.require("computers.read")
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            await _known(connection, principal, computer_id)
            rows = await saves.list_saves(connection, computer_id=computer_id, before=before, count=limit + 1)
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return SavePage(items=tuple(_save(row) for row in rows[:limit]), next_cursor=following)

    async def delete(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Reply:
        """Delete it with all its files. Idempotent; the receipt says `deleting` until nothing of it is left on its host [C9].

        Raises `ComputerBusy` while a Session on it isn't closed, `ComputerNotFound`.
        """

        async def work(connection: Connection, effects: Effects) -> Any:
            computer = await computers.lock_computer(connection, id=computer_id)
            await self._deletions.begin(connection, effects, computer)

        return await self._change(principal, "delete", computer_id, idempotency_key, work)

    async def _run(self, connection: Connection, effects: Effects, computer: Any) -> None:
        """Have a locked Computer run, wherever it is."""
        computer_id, residency = str(computer["id"]), computer["residency"]
        await computers.keep_awake(connection, id=computer_id, seconds=KEPT_SECONDS)
        if residency in ("cold", "unavailable", "hibernated"):
            going = await self._processes.set_going(connection, effects, computer)
            if going == "secret":
                raise await why_not(connection, computer_id)
            if going != "moving":
                raise CapacityUnavailable()
        elif residency == "hibernating":
            await self._sleeping.wake(connection, effects, computer_id)
        await notify_worker(connection, effects, computer_id)

    async def _change(self, principal: Principal, how: str, computer_id: str, key: str | None, change: Any) -> Reply:
        principal.require("computers.write")
        retry = retry_of(principal, f"computers.{how}", computer_id, key, {})

        async def work(connection: Connection, effects: Effects) -> Reply:
            await _known(connection, principal, computer_id)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            await change(connection, effects)
            row = await computers.computer_row(connection, id=computer_id)
            receipt = {"computer_id": computer_id, "status": row["status"], "residency": row["residency"]}
            return await retry.remember(connection, jsontext.dumps(receipt), None)

        return await self._core.write(f"{how}_computer", work)

    async def _insert(
        self, connection: Connection, principal: Principal, deployment_id: str, template: TemplateManifest, key: str | None
    ) -> str:
        while True:
            computer_id = new_id()
            made = await computers.create_computer(
                connection,
                id=computer_id,
                environment_id=principal.environment_id,
                deployment_id=deployment_id,
                template_id=template.id,
                template=jsontext.dumps(to_wire(template)),
                made_of=made_of(template),
                cpu=template.cpu,
                memory=template.memory,
                key=key,
            )
            if made is not None:
                return computer_id
            occupant = await computers.computer_by_key(
                connection, environment_id=principal.environment_id, template_id=template.id, key=key
            )
            if occupant is not None:  # else its Computer was deleted just now
                raise ComputerKeyConflict(computer_id=str(occupant))

    async def _template(self, connection: Connection, principal: Principal, template: str) -> tuple[str, TemplateManifest]:
        row = await deployments.current_deployment(connection, environment_id=principal.environment_id)
        if row is None:
            raise NoCurrentDeployment()
        manifest = self._manifests.of(str(row["id"]), row["manifest"])
        for found in manifest.templates:
            if found.id == template:
                return str(row["id"]), found
        raise TemplateNotFound(f"The Deployment has no Template {template!r}.")

    async def _rows(
        self,
        connection: Connection,
        principal: Principal,
        *,
        statuses: Sequence[str],
        count: int,
        id: str | None = None,
        template_id: str | None = None,
        before: str | None = None,
    ) -> list[Any]:
        rows: list[Any] = await computers.list_computers(
            connection,
            environment_id=principal.environment_id,
            id=id,
            statuses=list(statuses),
            template_id=template_id,
            before=before,
            count=count,
        )
        return rows


def _bindings(data: Sequence[Any], where: str) -> tuple[SecretBinding, ...]:
    try:
        return read_bindings(data, where)
    except ValueError as error:
        raise InvalidValue(str(error)) from None


def _joined(template: TemplateManifest, own: Sequence[SecretBinding]) -> tuple[Mapping[str, Any], ...]:
    """The Template's bindings, with those of the request."""
    places = {binding.place for binding in own}
    joined = [*(binding for binding in _bindings(template.secrets, "The Template") if binding.place not in places), *own]
    if len(joined) > SECRET_BINDINGS:
        raise InvalidValue(f"A Computer has at most {SECRET_BINDINGS} Secrets.")
    return tuple(to_wire(binding) for binding in joined)


async def _known(connection: Connection, principal: Principal, computer_id: str) -> Any:
    """The row of a Computer of this Environment. Raises `ComputerNotFound`."""
    row = None
    if is_id(computer_id):
        row = await computers.computer_in_environment(connection, id=computer_id, environment_id=principal.environment_id)
    if row is None:
        raise ComputerNotFound()
    return row


def _save(row: Any) -> Save:
    error: Any = UNSET
    if row["error"] is not None:
        stored = jsontext.loads(row["error"])
        error = ErrorInfo(code=stored["code"], message=stored.get("message", UNSET))
    known = {name: row[name] for name in ("files", "bytes", "new_bytes") if row[name] is not None}
    return Save(
        id=SaveId(str(row["id"])),
        computer_id=ComputerId(str(row["computer_id"])),
        state=row["state"],
        cause=row["cause"],
        started_at=render.time_text(row["started_at"]),
        completed_at=UNSET if row["completed_at"] is None else render.time_text(row["completed_at"]),
        error=error,
        **known,
    )


def _computer(row: Any) -> Computer:
    def at(name: str) -> Any:
        return UNSET if row[name] is None else render.time_text(row[name])

    error: Any = UNSET
    if row["error"] is not None:
        stored = jsontext.loads(row["error"])
        error = ErrorInfo(code=stored["code"], message=stored.get("message", UNSET))
    return Computer(
        id=ComputerId(str(row["id"])),
        deployment_id=DeploymentId(str(row["deployment_id"])),
        template=row["template_id"],
        status=row["status"],
        residency=row["residency"],
        explicit=row["explicit"],
        cpu=row["cpu"],
        memory=row["memory"],
        open_sessions=row["open_sessions"],
        created_at=render.time_text(row["created_at"]),
        key=UNSET if row["key"] is None else row["key"],
        slept_at=at("slept_at"),
        delete_after=at("delete_after"),
        saved_at=at("saved_at"),
        save_id=UNSET if row["save_id"] is None else SaveId(str(row["save_id"])),
        deleted_at=at("deleted_at"),
        error=error,
    )
