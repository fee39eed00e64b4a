"""Projects and Environments: seen by every member, made and limited by admins. SPEC 1, 14, [S4], [S5].

None is ever taken away: what was done in one stays in its Sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from helmr.control.domain.roles import BY_ROLE
from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.core import Core, Effects, retry_of_person
from helmr.control.service.limits import AdmissionLimit, EnvironmentLimits, set_limits
from helmr.control.service.reply import Reply
from helmr.control.service.signin.people import Person, note, person_now
from helmr.control.store.pool import Connection
from helmr.control.store.queries import environments, identity
from helmr.protocol import jsontext
from helmr.protocol.duration import duration_ms, format_duration, format_retention, retention_ms
from helmr.protocol.environment_shapes import Environment, EnvironmentPage, Limits, Project, ProjectPage
from helmr.protocol.errors import EnvironmentExists, EnvironmentNotFound, Forbidden, InvalidValue, ProjectExists, ProjectNotFound
from helmr.protocol.ids import DeploymentId, is_definition_id, is_id, new_id
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire

PERMISSION: Final = "projects.manage"
MOST_INIT_MS: Final = 24 * 3600 * 1000


class Environments:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def projects(self, person: Person, cursor: str | None, limit: int) -> ProjectPage:
        """Newest first."""
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            rows = await environments.projects(connection, id=None, before=before, count=limit + 1)
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return ProjectPage(items=tuple(_project(row) for row in rows[:limit]), next_cursor=following)

    async def create_project(self, person: Person, *, name: str, address: str, idempotency_key: str | None) -> Reply:
        """Raises `Forbidden`, `ProjectExists`, `InvalidValue`."""
        _check_name(name)
        retry = retry_of_person(person.id, "projects.create", "", idempotency_key, {"name": name})

        async def work(connection: Connection, effects: Effects) -> Reply:
            await _check(connection, person)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            made = await environments.insert_project(connection, id=new_id(), name=name)
            if made is None:
                raise ProjectExists()
            await note(connection, "project_created", user_id=person.id, address=address, about=name)
            (row,) = await environments.projects(connection, id=made, before=None, count=1)
            return await retry.remember(connection, jsontext.dumps(to_wire(_project(row))), None)

        return await self._core.write("create_project", work)

    async def list(self, person: Person, project: str | None, cursor: str | None, limit: int) -> EnvironmentPage:
        """Newest first, of one project or of all."""
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            rows = await environments.environments(connection, id=None, project=project, before=before, count=limit + 1)
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return EnvironmentPage(items=tuple(_environment(row) for row in rows[:limit]), next_cursor=following)

    async def get(self, person: Person, environment_id: str) -> Environment:
        """Raises `EnvironmentNotFound`."""
        async with self._core.database.connection() as connection:
            return _environment(await _found(connection, environment_id))

    async def create(self, person: Person, *, project: str, name: str, address: str, idempotency_key: str | None) -> Reply:
        """A new Environment, with the limits of a new installation's. Raises `Forbidden`, `ProjectNotFound`, `EnvironmentExists`."""
        _check_name(name)
        retry = retry_of_person(person.id, "environments.create", "", idempotency_key, {"project": project, "name": name})

        async def work(connection: Connection, effects: Effects) -> Reply:
            await _check(connection, person)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            project_id = await environments.project_named(connection, name=project)
            if project_id is None:
                raise ProjectNotFound()
            made = await environments.insert_environment(connection, id=new_id(), project_id=project_id, name=name)
            if made is None:
                raise EnvironmentExists()
            await note(connection, "environment_created", user_id=person.id, address=address, about=f"{project}/{name}")
            shown = _environment(await _found(connection, str(made)))
            return await retry.remember(connection, jsontext.dumps(to_wire(shown)), None)

        return await self._core.write("create_environment", work)

    async def limit(
        self, person: Person, environment_id: str, asked: Mapping[str, Any], *, address: str, idempotency_key: str | None
    ) -> Reply:
        """Set the limits that are given by the names of `Limits`; they act from the commit, on all control planes.

        Raises `Forbidden`, `EnvironmentNotFound`, `InvalidValue`.
        """
        asked = dict(asked)
        retry = retry_of_person(person.id, "environments.limit", environment_id, idempotency_key, asked)

        async def work(connection: Connection, effects: Effects) -> Reply:
            await _check(connection, person)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            row = await _found(connection, environment_id)
            await identity.lock_environment(connection, id=row["id"])
            limits, init_ms = _read(asked, (await _found(connection, environment_id))["burst"])
            await set_limits(connection, str(row["id"]), limits)
            if init_ms is not None:
                await environments.limit_init(connection, id=row["id"], max_init_ms=init_ms)
            told = ", ".join(f"{name} {value}" for name, value in asked.items()) or "nothing"
            await note(connection, "limits_changed", user_id=person.id, address=address, about=f"{row['project']}/{row['name']}: {told}")
            shown = _environment(await _found(connection, environment_id))
            return await retry.remember(connection, jsontext.dumps(to_wire(shown)), None)

        return await self._core.write("limit_environment", work)


async def _check(connection: Connection, person: Person) -> None:
    """By the role of now. Raises `Forbidden`."""
    asking = await person_now(connection, person.id)
    if asking is None or PERMISSION not in BY_ROLE[asking.role]:
        raise Forbidden("Only admins and owners make projects and Environments, and limit them.", permission=PERMISSION)


async def _found(connection: Connection, environment_id: str) -> Any:
    if is_id(environment_id):
        for row in await environments.environments(connection, id=environment_id, project=None, before=None, count=1):
            return row
    raise EnvironmentNotFound()


def _read(asked: Mapping[str, Any], burst: int | None) -> tuple[EnvironmentLimits, int | None]:
    """What was asked, as limits and the time for `init`. A rate without a burst keeps the burst that there is, or gets a second's worth."""
    try:
        return _limits(asked, burst), _init_ms(asked)
    except ValueError as error:
        raise InvalidValue(str(error)) from None


def _limits(asked: Mapping[str, Any], burst: int | None) -> EnvironmentLimits:
    def kept(name: str) -> Any:
        return retention_ms(asked[name], name) if name in asked else UNSET

    admission: Any = UNSET
    if "admission_rate" in asked and asked["admission_rate"] == "unlimited":
        admission = None
    elif "admission_rate" in asked:
        rate = _rate(asked["admission_rate"])
        admission = AdmissionLimit(rate=rate, burst=asked.get("admission_burst") or burst or max(1, round(rate)))
    if "admission_burst" in asked and admission in (None, UNSET):
        raise InvalidValue("An admission_burst needs an admission_rate.")
    return EnvironmentLimits(
        admission=admission,
        payload_retention_ms=kept("payload_retention"),
        computer_retention_ms=kept("computer_retention"),
        trigger_computer_retention_ms=kept("trigger_computer_retention"),
        trigger_grace_ms=duration_ms(asked["trigger_grace"], "trigger_grace") if "trigger_grace" in asked else UNSET,
    )


def _rate(text: str) -> float:
    try:
        return AdmissionLimit(rate=float(text), burst=1).rate
    except ValueError:
        raise InvalidValue('An admission_rate is a number of Turns a second, or "unlimited".') from None


def _init_ms(asked: Mapping[str, Any]) -> int | None:
    if "max_init_duration" not in asked:
        return None
    found = duration_ms(asked["max_init_duration"], "max_init_duration")
    if not 1000 <= found <= MOST_INIT_MS:
        raise InvalidValue("A max_init_duration is a second to a day.")
    return found


def _check_name(name: str) -> None:
    if not is_definition_id(name):
        raise InvalidValue("A name is 1 to 128 letters, digits, points, lines and dashes, and begins with a letter or a digit.")


def _project(row: Any) -> Project:
    return Project(
        id=str(row["id"]), name=row["name"], environments=tuple(row["environments"]), created_at=render.time_text(row["created_at"])
    )


def _environment(row: Any) -> Environment:
    rate, current = row["rate"], row["current_deployment_id"]
    return Environment(
        id=str(row["id"]),
        path=f"{row['project']}/{row['name']}",
        project=row["project"],
        name=row["name"],
        created_at=render.time_text(row["created_at"]),
        current_deployment_id=UNSET if current is None else DeploymentId(str(current)),
        limits=Limits(
            admission_rate="unlimited" if rate is None else f"{rate:g}",
            admission_burst=UNSET if rate is None else row["burst"],
            payload_retention=format_retention(row["payload_retention_ms"]),
            computer_retention=format_retention(row["computer_retention_ms"]),
            trigger_computer_retention=format_retention(row["trigger_computer_retention_ms"]),
            trigger_grace=format_duration(row["trigger_grace_ms"]),
            max_init_duration=format_duration(row["max_init_ms"]),
        ),
    )
