"""Members: added, changed, shut out, removed; the last owner stays. SPEC 14, [S4]."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.effort import often
from tests.service.signin.entry import HOME, PASSWORD
from tests.service.signin.test_over_http import HERE, ORIGIN, opened, set_up

from helmr.control.service.signin.people import add_person
from helmr.protocol.errors import CodeInvalid, Forbidden, LastOwner, MemberNotFound
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def signed_in(client, link: str) -> None:
    """Set the password by a link: the client has the cookie of that member from then on."""
    code = link.partition("code=")[2]
    client.cookies.clear()
    assert (await client.post("/auth/password-links/use", json={"code": code, "password": PASSWORD}, headers=ORIGIN)).status_code == 200


async def sign_in(client, email: str) -> int:
    client.cookies.clear()
    return (await client.post("/auth/sign-in", json={"email": email, "password": PASSWORD}, headers=ORIGIN)).status_code


async def add(client, email: str, role: str, **headers: str) -> Any:
    return await client.post("/v1/members", json={"email": email, "name": "N", "role": role}, headers=ORIGIN | headers)


async def change(client, member: str, **what: Any) -> Any:
    return await client.post(f"/v1/members/{member}/change", json=what, headers=ORIGIN)


async def test_a_member_is_added_comes_in_by_the_link_and_every_change_acts_on_the_next_request(database, tmp_path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        made = (await add(client, "Bob@Example.com ", "developer")).json()
        bob, link = made["member"], made["password_link"]["url"]
        assert (bob["email"], bob["role"], bob["ways"]) == ("bob@example.com", "developer", [])
        assert link.startswith("https://helmr.example.com/auth/password-link?code=")
        assert (await add(client, "bob@example.com", "viewer")).json()["code"] == "member_exists"
        owner = dict(client.cookies)
        await signed_in(client, link)
        bobs = dict(client.cookies)
        assert [item["email"] for item in (await client.get("/v1/members")).json()["items"]] == ["bob@example.com", "ada@example.com"]
        assert (await add(client, "eve@example.com", "viewer")).json()["code"] == "forbidden"
        make_key = {"name": "k", "permissions": ["sessions.read"]}
        assert (await client.post("/v1/api-keys", json=make_key, headers=ORIGIN | HERE)).status_code == 403

        async def by(cookies: dict[str, str], work: Any) -> Any:
            client.cookies.clear()
            client.cookies.update(cookies)
            return await work()

        assert (await by(owner, lambda: change(client, bob["id"], role="admin", name="Bob B."))).json()["name"] == "Bob B."
        assert (await by(bobs, lambda: client.post("/v1/api-keys", json=make_key, headers=ORIGIN | HERE))).status_code == 201
        found = (await client.get(f"/v1/members/{bob['id']}")).json()
        assert (found["role"], found["ways"]) == ("admin", ["password"]) and "last_seen_at" in found
        ada = next(item["id"] for item in (await client.get("/v1/members")).json()["items"] if item["role"] == "owner")
        for refused in (await change(client, ada, role="viewer"), await change(client, bob["id"], role="owner")):
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert "disabled_at" in (await by(owner, lambda: change(client, bob["id"], disabled=True))).json()
        assert (await by(bobs, lambda: client.get("/v1/members"))).status_code == 401
        assert await sign_in(client, "bob@example.com") == 401
        assert "disabled_at" not in (await by(owner, lambda: change(client, bob["id"], disabled=False))).json()
        assert (await by(bobs, lambda: client.get("/v1/members"))).status_code == 401, "its sign-ins have ended"
        assert await sign_in(client, "bob@example.com") == 200
        again = dict(client.cookies)
        gone = await by(owner, lambda: client.post(f"/v1/members/{bob['id']}/remove", json={}, headers=ORIGIN))
        assert gone.json()["email"] == "bob@example.com"
        assert (await by(again, lambda: client.get("/v1/members"))).status_code == 401
        assert (await by(owner, lambda: client.get(f"/v1/members/{bob['id']}"))).json()["code"] == "member_not_found"
        assert (await add(client, "bob@example.com", "viewer")).status_code == 201, "the address is free again"


async def test_nothing_makes_the_installation_ownerless(database, tmp_path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        ada = (await set_up(plane, client))["id"]
        for refused in (
            await change(client, ada, role="admin"),
            await change(client, ada, disabled=True),
            await client.post(f"/v1/members/{ada}/remove", json={}, headers=ORIGIN),
        ):
            assert (refused.status_code, refused.json()["code"]) == (409, "last_owner")
        other = (await add(client, "bob@example.com", "owner")).json()["member"]["id"]
        assert (await change(client, other, disabled=True)).status_code == 200
        assert (await change(client, ada, role="admin")).json()["code"] == "last_owner", "one who can't come in owns nothing"
        assert (await change(client, other, disabled=False)).status_code == 200
        assert (await change(client, ada, role="viewer")).json()["role"] == "viewer"


async def test_an_exact_retry_changes_nothing_and_has_no_link(database, tmp_path) -> None:
    """[S4]: the link is in nobody's receipt."""
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        first = await add(client, "bob@example.com", "viewer", **{"Idempotency-Key": "k"})
        again = await add(client, "bob@example.com", "viewer", **{"Idempotency-Key": "k"})
        assert again.headers["idempotency-replayed"] == "true" and "password_link" not in again.json()
        assert again.json()["member"] == first.json()["member"]
        other = await add(client, "bob@example.com", "admin", **{"Idempotency-Key": "k"})
        assert other.json()["code"] == "idempotency_conflict"


@asynccontextmanager
async def two_owners(dsn, tmp_path):
    async with opened(dsn, tmp_path) as (plane, _client):

        async def make(email: str) -> Any:
            return await plane.database.run(lambda connection: add_person(connection, email=email, name="N", role="owner"))

        yield plane, await make("a@example.com"), await make("b@example.com"), make


async def test_of_two_owners_who_demote_shut_out_or_remove_each_other_at_once_one_stays(database, tmp_path) -> None:
    async with two_owners(database, tmp_path) as (plane, a, b, make):
        what = {"name": None, "role": None, "disabled": None, "address": HOME, "idempotency_key": None}
        for n in range(often(6, soak=300)):
            how = ({"role": "viewer"}, {"disabled": True}, None)[n % 3]

            async def strike(one: Any, other: Any, how: Any = how) -> Any:
                if how is None:
                    return await plane.members.remove(one, other.id, address=HOME, idempotency_key=None)
                return await plane.members.change(one, other.id, **(what | how))

            ended = await asyncio.gather(strike(a, b), strike(b, a), return_exceptions=True)
            failed = [item for item in ended if isinstance(item, BaseException)]
            assert len(failed) == 1 and isinstance(failed[0], Forbidden), ended
            a = a if isinstance(ended[1], BaseException) else b
            b = await make(f"{n}@example.com")
        await plane.members.remove(a, b.id, address=HOME, idempotency_key=None)
        with pytest.raises(LastOwner):
            await plane.members.remove(a, a.id, address=HOME, idempotency_key=None)


async def test_a_link_that_is_used_while_its_member_is_shut_out_or_removed_lets_nobody_in(database, tmp_path) -> None:
    """Whichever comes first, and neither waits for the other for ever (I3)."""
    async with two_owners(database, tmp_path) as (plane, a, _b, _make):
        for n in range(often(6, soak=300)):
            email = f"{n}@example.com"
            made = await plane.members.add(a, email=email, name="N", role="viewer", link_at=str, address=HOME, idempotency_key=None)
            told = json.loads(made.body)
            code, member = told["password_link"]["url"], told["member"]["id"]

            async def shut(member: str = member, n: int = n) -> Any:
                if n % 2:
                    return await plane.members.remove(a, member, address=HOME, idempotency_key=None)
                return await plane.members.change(a, member, name=None, role=None, disabled=True, address=HOME, idempotency_key=None)

            used, _ = await asyncio.gather(
                plane.passwords.set_by_link(code, PASSWORD, label="", address=f"192.0.2.{n % 250}"), shut(), return_exceptions=True
            )
            if isinstance(used, BaseException):
                assert isinstance(used, CodeInvalid)
            async with plane.database.connection() as connection:
                assert await connection.fetchval("SELECT count(*) FROM sign_ins WHERE user_id = $1", member) == 0
        assert plane.database.deadlocks == 0


async def test_a_link_of_a_member_who_was_shut_out_is_void_also_after_they_are_let_in_again(database, tmp_path) -> None:
    async with two_owners(database, tmp_path) as (plane, a, _b, _make):
        made = await plane.members.add(a, email="c@example.com", name="N", role="viewer", link_at=str, address=HOME, idempotency_key=None)
        told = json.loads(made.body)
        for disabled in (True, False):
            await plane.members.change(a, told["member"]["id"], name=None, role=None, disabled=disabled, address=HOME, idempotency_key=None)
        with pytest.raises(CodeInvalid):
            await plane.passwords.set_by_link(told["password_link"]["url"], PASSWORD, label="", address=HOME)


async def test_who_is_asked_about_must_be_there_and_who_asks_too(database, tmp_path) -> None:
    async with two_owners(database, tmp_path) as (plane, a, b, _make):
        for id in (new_id(), "not-an-id"):
            with pytest.raises(MemberNotFound):
                await plane.members.get(a, id)
            with pytest.raises(MemberNotFound):
                await plane.members.remove(a, id, address=HOME, idempotency_key=None)
        await plane.members.remove(a, b.id, address=HOME, idempotency_key=None)
        with pytest.raises(Forbidden):
            await plane.members.remove(b, a.id, address=HOME, idempotency_key=None)
