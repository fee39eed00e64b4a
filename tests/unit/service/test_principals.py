"""Authentication: how often the database is asked, and what those get who ask together. SPEC 14."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from helmr.control.service.principals import PERMISSIONS, Principals
from helmr.control.store.pool import Database
from helmr.protocol.errors import DatabaseUnavailable, Unauthenticated
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio

KEY = "hlmr_sk_" + "k" * 40


class Keys:
    """A database of keys that answers when it is told to; stands for `Database` and for a connection of it."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[dict[str, Any] | None]] = []

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Keys]:
        yield self

    async def fetchrow(self, _: str, *__: object) -> dict[str, Any] | None:
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        return await answer

    async def until_asked(self, times: int) -> None:
        while len(self.asked) < times:
            await asyncio.sleep(0)


ROW: dict[str, Any] = {
    "id": new_id(),
    "environment_id": new_id(),
    "kind": "api_key",
    "permissions": list(PERMISSIONS),
    "made_by_user": None,
    "name": "key",
}


def principals(keys: Keys) -> Principals:
    return Principals(cast("Database", keys), worker_token=None)


async def test_those_who_ask_together_ask_the_database_once():
    keys = Keys()
    authority = principals(keys)
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(authority.authenticate(KEY)) for _ in range(20)]
        await keys.until_asked(1)
        for _ in range(3):
            await asyncio.sleep(0)  # all twenty have begun
        keys.asked[0].set_result(ROW)
    assert {task.result().id for task in asking} == {ROW["id"]}
    assert (await authority.authenticate(KEY)).id == ROW["id"]
    assert len(keys.asked) == 1


async def test_a_key_that_is_unknown_is_refused_to_all_who_asked_together_and_asked_for_again_later():
    keys = Keys()
    authority = principals(keys)
    asking = [asyncio.ensure_future(authority.authenticate(KEY)) for _ in range(3)]
    await keys.until_asked(1)
    keys.asked[0].set_result(None)
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unauthenticated] * 3
    later = asyncio.ensure_future(authority.authenticate(KEY))
    await keys.until_asked(2)
    keys.asked[1].set_result(ROW)
    assert (await later).id == ROW["id"]


async def test_a_database_that_is_away_refuses_all_who_asked_together():
    keys = Keys()
    authority = principals(keys)
    asking = [asyncio.ensure_future(authority.authenticate(KEY)) for _ in range(3)]
    await keys.until_asked(1)
    keys.asked[0].set_exception(DatabaseUnavailable("away"))
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [DatabaseUnavailable] * 3


async def test_when_the_one_who_asks_for_all_is_cancelled_another_asks():
    keys = Keys()
    authority = principals(keys)
    first = asyncio.ensure_future(authority.authenticate(KEY))
    await keys.until_asked(1)
    others = [asyncio.ensure_future(authority.authenticate(KEY)) for _ in range(3)]
    await asyncio.sleep(0)  # they wait for the first
    first.cancel()
    await keys.until_asked(2)
    keys.asked[1].set_result(ROW)
    assert {principal.id for principal in await asyncio.gather(*others)} == {ROW["id"]}
    assert len(keys.asked) == 2
    assert first.cancelled()


async def test_nobody_waits_for_an_answer_that_may_be_older_than_a_second(monkeypatch: pytest.MonkeyPatch):
    """A revocation acts within a second, also while the database is slow."""
    keys = Keys()
    authority = principals(keys)
    now = 100.0
    monkeypatch.setattr("helmr.control.service.principals.time", SimpleNamespace(monotonic=lambda: now))
    slow = asyncio.ensure_future(authority.authenticate(KEY))
    await keys.until_asked(1)
    now = 101.0
    later = asyncio.ensure_future(authority.authenticate(KEY))
    await keys.until_asked(2)
    keys.asked[1].set_result(None)  # revoked meanwhile
    with pytest.raises(Unauthenticated):
        await later
    keys.asked[0].set_result(ROW)
    assert (await slow).id == ROW["id"]
    now = 101.5
    after = asyncio.ensure_future(authority.authenticate(KEY))
    await keys.until_asked(3)
    keys.asked[2].set_result(None)
    with pytest.raises(Unauthenticated):
        await after
