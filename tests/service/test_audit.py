"""The audit log: every write that was accepted, once, with who asked for it. SPEC 14, [O1], [S4]."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from tests.service.scripted import House, agent, house

from helmr.control.domain.audit import KEPT_DAYS, OPERATIONS
from helmr.control.service.principals import Principal, ensure_environment
from helmr.protocol.audit_shapes import AuditEntry
from helmr.protocol.errors import Forbidden, HelmrError, SessionNotOpen
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def entries(h: House, principal: Principal | None = None, **asked: Any) -> list[AuditEntry]:
    """Those of the Environment, the oldest first."""
    given: dict[str, Any] = dict.fromkeys(("by", "operation", "target", "since", "until", "cursor")) | {"limit": 100} | asked
    return list((await h.plane.audit.list(principal or h.principal, **given)).items)[::-1]


async def operations(h: House, **asked: Any) -> list[str]:
    return [entry.operation for entry in await entries(h, **asked)]


async def test_what_is_asked_of_a_session_stands_there_with_who_and_of_what(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        made = await h.create("go")
        session = made["session"]["id"]
        turn = (await h.enqueue(session, "more"))["id"]
        await h.plane.controls.interrupt(h.principal, session, None)
        await h.plane.controls.cancel(h.principal, session, "once")
        found = await entries(h)
        assert [entry.operation for entry in found] == ["sessions.create", "turns.enqueue", "sessions.interrupt", "sessions.cancel"]
        assert {entry.target for entry in found} == {session} and found[1].id == turn
        assert {(entry.by.kind, entry.by.id, entry.by.name) for entry in found} == {("api_key", h.principal.id, "tester")}


async def test_a_repeated_request_stands_there_once_and_a_refused_one_never(database, tmp_path) -> None:
    """[S4]: of an exact retry nothing is done, so nothing is told."""
    async with house(database, tmp_path, agent("talker")) as h:
        made = await h.create(idempotency_key="k")
        assert await h.create(idempotency_key="k") == made
        session = made["session"]["id"]
        for _ in range(2):
            await h.plane.turns.enqueue(h.principal, session, [{"type": "text", "text": "a"}], "t")
            await h.plane.controls.close(h.principal, session, "c")
        with pytest.raises(SessionNotOpen):
            await h.plane.turns.enqueue(h.principal, session, [{"type": "text", "text": "b"}], None)
        with pytest.raises(HelmrError):
            await h.plane.controls.resume(h.principal, session, new_id(), None)
        await h.plane.controls.cancel(h.principal, session, None)
        assert await operations(h) == ["sessions.create", "turns.enqueue", "sessions.close", "sessions.cancel"]


async def test_a_transaction_that_does_not_commit_leaves_nothing_there(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        lacking = replace(h.principal, permissions=frozenset({"keys.manage", "audit.read"}))
        with pytest.raises(Forbidden):
            await h.plane.api_keys.create(lacking, name="x", permissions=["sessions.read"], expires_in=None, idempotency_key="k")
        await h.plane.api_keys.create(h.principal, name="x", permissions=["sessions.read"], expires_in=None, idempotency_key="k")
        key = (await h.plane.api_keys.list(h.principal, None, 1)).items[0]
        assert [(entry.operation, entry.target) for entry in await entries(h)] == [("api_keys.create", key.id)]


async def test_the_log_is_narrowed_by_who_what_where_and_when_and_its_pages_fit_together(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        made = [(await h.create())["session"]["id"] for _ in range(5)]
        for session in made[:3]:
            await h.plane.controls.close(h.principal, session, None)
        other = replace(h.principal, id=new_id())
        await h.plane.controls.close(other, made[4], None)
        assert await operations(h, operation="sessions.cl") == ["sessions.close"] * 4
        assert await operations(h, by=other.id) == ["sessions.close"]
        assert await operations(h, target=made[0]) == ["sessions.create", "sessions.close"]
        now = datetime.now(UTC)
        assert await operations(h, since=now + timedelta(hours=1)) == [] == await operations(h, until=now - timedelta(hours=1))
        assert len(await operations(h, since=now - timedelta(hours=1), until=now + timedelta(hours=1))) == 9
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await h.plane.audit.list(
                h.principal, by=None, operation=None, target=None, since=None, until=None, cursor=cursor, limit=2
            )
            seen += [entry.id for entry in page.items]
            if (cursor := page.next_cursor) is None:
                break
        assert seen == [entry.id for entry in await entries(h)][::-1] and len(set(seen)) == 9


async def test_another_environment_and_who_may_not_read_it_see_nothing_of_it(database, tmp_path) -> None:
    """[O1]"""
    async with house(database, tmp_path, agent("talker")) as h:
        session = (await h.create())["session"]["id"]
        async with h.database.connection() as connection:
            elsewhere = await ensure_environment(connection, "other", "main")
        stranger = replace(h.principal, environment_id=elsewhere)
        assert await entries(h, stranger) == [] == await entries(h, stranger, target=session)
        with pytest.raises(Forbidden):
            await entries(h, replace(h.principal, permissions=h.principal.permissions - {"audit.read"}))


async def test_what_is_older_than_it_is_kept_goes_in_parts_and_the_rest_stays(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        first, second = [(await h.create())["session"]["id"] for _ in range(2)]
        connection = await asyncpg.connect(database)
        try:
            await connection.execute(
                "UPDATE audit SET at = at - $1 * interval '1 day' - interval '1 minute' WHERE target = $2", KEPT_DAYS, first
            )
            assert not await h.plane.audit.forget_old()
            assert [entry.target for entry in await entries(h)] == [second]
        finally:
            await connection.execute("DELETE FROM audit")  # the Turns' entries are gone on purpose: that is no fault here
            await connection.execute("TRUNCATE sessions, turns, events CASCADE")
            await connection.close()


def test_each_operation_is_told_in_the_docs() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs/reference/audit.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `")][: len(OPERATIONS)] == [
        f"| `{name}` | {meaning} |" for name, meaning in OPERATIONS.items()
    ]
