"""People as those who ask: their Sessions, retries, and what their role permits. SPEC 14, [S4], [O1]."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.scripted import House, agent, house

from helmr.control.service.principals import PERMISSIONS, Principal
from helmr.control.service.signin.people import add_person
from helmr.control.store.pool import Connection
from helmr.protocol import jsontext
from helmr.protocol.errors import EnvironmentNotFound, EnvironmentRequired, Forbidden, SessionNotFound, Unauthenticated

pytestmark = pytest.mark.anyio


async def acting(h: House, role: Any, environment: str = "test/main") -> Principal:
    async def work(connection: Connection) -> str:
        return (await add_person(connection, email=f"{role}@example.com", name=role, role=role)).id

    return await h.plane.principals.of_person(await h.database.run(work), environment)


async def create(h: House, principal: Principal, key: str | None = None) -> Any:
    return await h.plane.sessions.create(
        principal,
        agent="talker",
        input=[{"type": "text", "text": "go"}],
        key=None,
        computer_id=None,
        slack_channel_id=None,
        labels=None,
        idempotency_key=key,
    )


async def test_a_developer_creates_once_however_often_it_is_asked_and_is_named_by_the_timeline(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        person = await acting(h, "developer")
        first, again = await create(h, person, "k"), await create(h, person, "k")
        assert again.replayed and again.body == first.body
        made = jsontext.loads(first.body)
        await h.plane.controls.cancel(person, made["session"]["id"], "c")
        told = {record["kind"]: record["data"] for record in await h.events(made["session"]["id"])}
        assert told["turn.queued"]["source"] == {"kind": "user"}
        assert told["session.cancel"]["by"] == {"kind": "user", "id": person.id}


async def test_a_viewer_reads_and_starts_nothing(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        person = await acting(h, "viewer")
        made = await h.create()
        assert (await h.plane.sessions.get(person, made["session"]["id"])).id == made["session"]["id"]
        assert person.permissions & set(PERMISSIONS) == {name for name in PERMISSIONS if name.endswith(".read")} | {"questions.respond"}
        with pytest.raises(Forbidden):
            await create(h, person)


async def test_roles_have_what_those_before_them_have(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        viewer, developer, admin, owner = [(await acting(h, role)).permissions for role in ("viewer", "developer", "admin", "owner")]
        assert viewer < developer < admin and admin <= owner
        assert {"computers.exec", "deployments.write", "sessions.cancel"} <= developer - viewer
        assert {"secrets.write", "keys.manage"} <= admin - developer


async def test_a_person_is_in_the_environment_that_is_named_and_sees_no_other(database, tmp_path) -> None:
    """[O1]: an id of another Environment is an unknown one, also for who may see both."""
    from helmr.control.service.principals import ensure_environment

    async with house(database, tmp_path, agent("talker")) as h:
        made = await h.create()
        async with h.database.connection() as connection:
            await ensure_environment(connection, "test", "other")
        person = await acting(h, "owner", "test/other")
        with pytest.raises(SessionNotFound):
            await h.plane.sessions.get(person, made["session"]["id"])
        for wrong in ("test/none", "none/main", "test", "/", "", "test/main/x", "test\0/main"):
            with pytest.raises(EnvironmentNotFound):
                await h.plane.principals.of_person(person.id, wrong)
        with pytest.raises(EnvironmentRequired):
            await h.plane.principals.of_person(person.id, None)
        async with h.database.connection() as connection:
            await connection.execute("UPDATE users SET disabled_at = now()")
        with pytest.raises(Unauthenticated):
            await h.plane.principals.of_person(person.id, "test/main")
