"""Creations that meet: one key, one idempotency key, on one control plane and on two. [S2]-[S4]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.effort import often
from tests.service.races.forcing import PATIENCE, Entrant, Referee, quiet, referee
from tests.service.races.planes import beside
from tests.service.races.staging import TEXT, idle
from tests.service.scripted import House, house

from helmr.control.service.plane import ControlPlane
from helmr.protocol.errors import HelmrError

pytestmark = pytest.mark.anyio

Creating = Callable[[ControlPlane], Awaitable[Any]]


@asynccontextmanager
async def held_computer(h: House, r: Referee) -> AsyncIterator[str]:
    """A Computer whose row a test holds: a creation on it has claimed its idempotency key and waits."""
    s = await idle(h)
    async with h.database.connection() as connection:
        computer = str(await connection.fetchval("SELECT computer_id FROM sessions WHERE id = $1", s.session))
    transaction = r._holder.transaction()
    await transaction.start()
    await r._holder.execute("SELECT FROM computers WHERE id = $1 FOR UPDATE", computer)
    try:
        yield computer
    finally:
        await transaction.rollback()


async def meet(
    h: House, r: Referee, planes: tuple[ControlPlane, ...], create: Callable[[ControlPlane, str], Awaitable[Any]]
) -> list[Entrant]:
    """The same creation from each of `planes`, all of them under way before the first commits."""
    entrants: list[Entrant] = []
    async with held_computer(h, r) as computer:
        for plane in planes:
            entrants.append(Entrant(lambda plane=plane: create(plane, computer)))
            await r.standing(min(len(entrants), len(set(planes))))
    for entrant in entrants:
        await entrant.end()
    return entrants


async def sessions_like(h: House, ids: set[str]) -> int:
    async with h.database.connection() as connection:
        return await connection.fetchval("SELECT count(*) FROM sessions WHERE id = ANY ($1::uuid[])", list(ids))


@pytest.mark.parametrize("count", [1, 2], ids=["one control plane", "two control planes"])
async def test_of_creations_with_one_session_key_one_is_made_and_the_others_are_told_which(database, tmp_path, count):
    """[S3]."""
    async with house(database, tmp_path) as h, beside(h, tmp_path) as other, referee(h, other) as r:
        for n in range(often(12)):
            planes = (h.plane, other)[:count] * (3 - count)

            async def create(plane: ControlPlane, computer: str, n: int = n) -> Any:
                return await plane.sessions.create(h.principal, agent="talker", key=f"key {n}", computer_id=computer, input=TEXT)

            entrants = await meet(h, r, planes, create)
            made = [json.loads(entrant.value.body)["session"]["id"] for entrant in entrants if entrant.code == "ok"]
            assert sorted(entrant.code for entrant in entrants) == ["ok", "session_key_conflict"]
            assert [entrant.value.facts["session_id"] for entrant in entrants if entrant.code != "ok"] == made
            found = await h.plane.sessions.list(h.principal, agent="talker", key=f"key {n}")
            assert [session.id for session in found.items] == made
        await quiet(h.plane, other)


@pytest.mark.parametrize("taken", [False, True], ids=["free", "its key is taken"])
@pytest.mark.parametrize("count", [1, 2], ids=["one control plane", "two control planes"])
async def test_identical_creations_get_one_receipt_or_one_refusal(database, tmp_path, count, taken):
    """[S4]: exact retries that meet. A refused request is not remembered: each is judged, and judged alike."""
    async with house(database, tmp_path) as h, beside(h, tmp_path) as other, referee(h, other) as r:
        for n in range(often(10)):
            occupant = (await h.create(None, key=f"key {n}"))["session"]["id"] if taken else None
            planes = (h.plane, other)[:count] * (4 // count)

            async def create(plane: ControlPlane, computer: str, n: int = n) -> Any:
                return await plane.sessions.create(
                    h.principal, agent="talker", key=f"key {n}", computer_id=computer, input=TEXT, idempotency_key=f"retry {n}"
                )

            entrants = await meet(h, r, planes, create)
            if taken:
                assert {entrant.code for entrant in entrants} == {"session_key_conflict"}
                assert {entrant.value.facts["session_id"] for entrant in entrants} == {occupant}
                continue
            assert {entrant.code for entrant in entrants} == {"ok"}
            assert len({entrant.value.body for entrant in entrants}) == 1
            assert [entrant.value.replayed for entrant in entrants].count(False) == 1
            made = json.loads(entrants[0].value.body)
            assert (await h.plane.sessions.list(h.principal, agent="talker", key=f"key {n}")).items[0].id == made["session"]["id"]
        await quiet(h.plane, other)


async def test_of_different_creations_with_one_idempotency_key_one_is_made(database, tmp_path):
    """[S4]: another fingerprint under the key has no effect, whichever came first."""
    async with house(database, tmp_path) as h, beside(h, tmp_path) as other, referee(h, other) as r:
        for n in range(often(12)):

            async def create(plane: ControlPlane, computer: str, n: int = n) -> Any:
                labels = {"by": "one" if plane is h.plane else "another"}
                return await plane.sessions.create(
                    h.principal, agent="talker", computer_id=computer, labels=labels, input=TEXT, idempotency_key=f"retry {n}"
                )

            entrants = await meet(h, r, (h.plane, other), create)
            assert sorted(entrant.code for entrant in entrants) == ["idempotency_conflict", "ok"]
        await quiet(h.plane, other)


@pytest.mark.parametrize("count", [1, 2], ids=["one control plane", "two control planes"])
async def test_identical_enqueues_admit_one_turn(database, tmp_path, count):
    """[S4], [S6]: exact retries that wait for one Session's lock; others with the key conflict."""
    async with house(database, tmp_path, size=16) as h, beside(h, tmp_path) as other, referee(h, other) as r:
        for n in range(often(10)):
            s = await idle(h)
            planes = ((h.plane, other)[:count] * 3)[:3]

            async def enqueue(plane: ControlPlane, text: Any = TEXT, s: Any = s, n: int = n) -> Any:
                return await plane.turns.enqueue(h.principal, s.session, text, f"retry {n}")

            async with r.queue(s.session) as q:
                one = await q.first(lambda enqueue=enqueue, planes=planes: enqueue(planes[0]))
                two = await q.then(lambda enqueue=enqueue, planes=planes: enqueue(planes[1]))
                odd = await q.then(lambda enqueue=enqueue, planes=planes: enqueue(planes[2], [*TEXT, *TEXT]))
            assert (one.code, two.code, odd.code) == ("ok", "ok", "idempotency_conflict")
            assert one.value.body == two.value.body and (one.value.replayed, two.value.replayed) == (False, True)
            async with h.database.connection() as connection:
                assert await connection.fetchval("SELECT count(*) FROM turns WHERE session_id = $1", s.session) == 2
        await quiet(h.plane, other)


async def test_a_creation_against_a_promotion_is_pinned_to_one_deployment_that_was_current(database, tmp_path):
    """[S2]: pinned in its transaction: what was judged by a Deployment that is no longer current is judged again."""
    from tests.service.scripted import agent, deploy, manifest

    async with house(database, tmp_path, size=16) as h:
        for n in range(often(12)):
            promote = deploy(h.database, h.principal.environment_id, manifest(agent("talker", close_after_idle_ms=1000 + n)))
            creations = [h.plane.sessions.create(h.principal, agent="talker", idempotency_key=f"{n} {i // 2}") for i in range(6)]
            async with asyncio.timeout(PATIENCE):
                deployment, *replies = await asyncio.gather(promote, *creations)
            bodies = [reply.body for reply in replies]
            assert all(bodies[i] == bodies[i + 1] for i in range(0, 6, 2)), "[S4]: twins agree"
            after = json.loads((await h.plane.sessions.create(h.principal, agent="talker")).body)
            assert after["session"]["deployment_id"] == deployment


async def test_a_key_of_a_refused_creation_is_free(database, tmp_path):
    """[S4]: only accepted requests are remembered, also when many are refused in one commit."""
    async with house(database, tmp_path, size=16) as h:
        await h.create(None, key="taken")

        async def create(**options: Any) -> str:
            try:
                await h.plane.sessions.create(h.principal, agent="talker", idempotency_key="retry", **options)
            except HelmrError as error:
                return error.code
            return "ok"

        refused = await asyncio.gather(*(create(key="taken") for _ in range(8)))
        assert set(refused) == {"session_key_conflict"}
        assert await create(key="free") == "ok"
        assert await create(key="taken") == "idempotency_conflict"
