"""Each operation, by each role and each key: done only with its permission, and refused before anything is read. SPEC 11, 14, [O1]."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from tests.service.signin.entry import PASSWORD
from tests.service.signin.test_members import add, signed_in
from tests.service.signin.test_over_http import HERE, ORIGIN, opened, set_up

from helmr.control.api.route import Route
from helmr.control.api.table import declared_routes
from helmr.control.domain.roles import BY_ROLE, OF_PEOPLE, PERMISSIONS
from helmr.control.service.principals import store_key
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio

ROUTES = [route for route in declared_routes() if route.permission is not None]
SPEC_14 = {
    "viewer": {"audit.read", "computers.read", "deployments.read", "keys.read", "members.read", "projects.read", "secrets.read",
               "sessions.read", "workers.read", "questions.respond"},
    "developer": {"sessions.create", "sessions.send", "sessions.interrupt", "sessions.resume", "sessions.close", "sessions.cancel",
                  "computers.write", "computers.exec", "deployments.write"},
    "admin": {"secrets.write", "keys.manage", "members.manage", "projects.manage", "workers.manage"},
    "owner": set(),
}  # fmt: skip
"""What each role may beyond the one before."""


async def ask(client: httpx.AsyncClient, route: Route, **headers: str) -> httpx.Response:
    """With a body that no route takes and ids that don't exist."""
    path = re.sub(r"\{(\w+)\}", lambda _: new_id(), route.path)
    body: dict[str, Any] = {} if route.method == "GET" else {"content": b"{never json"}
    return await client.request(route.method, path, headers=headers, **body)


def as_owner(client: httpx.AsyncClient) -> dict[str, str]:
    """Whoever is signed in, as a header."""
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}


def refused(response: httpx.Response, permission: str) -> bool:
    told = response.json() if response.headers["content-type"].startswith("application/problem") else {}
    assert response.status_code < 500 or told.get("retryable"), response.text
    if response.status_code != 403:
        return False
    assert told["code"] == "forbidden" and told["permission"] in (*PERMISSIONS, *OF_PEOPLE), told
    return told["permission"] == permission


def test_the_roles_are_those_of_the_table() -> None:
    """SPEC 14."""
    may: set[str] = set()
    for role, more in SPEC_14.items():
        may |= more | ({"webhooks.manage"} & set(PERMISSIONS) if role == "admin" else set())
        may |= {"webhooks.read"} & set(PERMISSIONS) if role == "viewer" else set()
        assert BY_ROLE[role] == may  # pyright: ignore[reportArgumentType]
    assert may == {*PERMISSIONS, *OF_PEOPLE}


async def test_each_role_does_what_it_may_and_nothing_else(database, tmp_path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        owner = dict(client.cookies)
        cookies = {"owner": owner}
        for role in ("viewer", "developer", "admin"):
            client.cookies.clear()
            client.cookies.update(owner)
            await signed_in(client, (await add(client, f"{role}@example.com", role)).json()["password_link"]["url"])
            cookies[role] = dict(client.cookies)
        for role, jar in cookies.items():
            client.cookies.clear()
            client.cookies.update(jar)
            for route in ROUTES:
                assert route.permission is not None
                answer = await ask(client, route, **ORIGIN, **HERE)
                assert refused(answer, route.permission) == (route.permission not in BY_ROLE[role]), (role, route.name, answer.text)  # pyright: ignore[reportArgumentType]
                assert answer.status_code != 401, (role, route.name)


async def test_each_key_does_what_it_may_and_nothing_else(database, tmp_path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        tokens = {name: f"hlmr_sk_only-{name}" for name in PERMISSIONS}
        async with plane.database.connection() as connection:
            from helmr.control.store.queries import identity

            environment = str((await identity.environment_named(connection, project="default", name="main"))["id"])
            for name, token in tokens.items():
                await store_key(connection, environment, name, token, (name,))
                await store_key(connection, environment, f"not {name}", f"{token}-not", tuple(set(PERMISSIONS) - {name}))
        for route in ROUTES:
            permission = route.permission
            assert permission is not None
            if route.access == "person":
                told = (await ask(client, route, Authorization=f"Bearer {tokens['sessions.read']}")).json()
                assert told["code"] == "unauthenticated", route.name
                continue
            without = await ask(client, route, Authorization=f"Bearer {tokens[permission]}-not")
            assert refused(without, permission), (route.name, without.text)
            having = await ask(client, route, Authorization=f"Bearer {tokens[permission]}")
            assert not refused(having, permission) and having.status_code != 401, (route.name, having.text)


async def test_a_key_may_at_most_what_its_maker_may_now_and_stops_with_who_can_not_come_in(database, tmp_path) -> None:
    """SPEC 14: at most its creator's, now; changes act at once."""
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        owner = as_owner(client)
        added = (await add(client, "bob@example.com", "admin")).json()
        bob = added["member"]["id"]
        await signed_in(client, added["password_link"]["url"])
        made = await client.post(
            "/v1/api-keys", json={"name": "ci", "permissions": ["keys.manage", "keys.read", "sessions.read"]}, headers=ORIGIN | HERE
        )
        token = {"Authorization": f"Bearer {made.json()['token']}"}
        by_key = await client.post("/v1/api-keys", json={"name": "of a key", "permissions": ["keys.read"]}, headers=token)
        its_token = {"Authorization": f"Bearer {by_key.json()['token']}"}
        ids = [answer.json()["key"]["id"] for answer in (made, by_key)]
        client.cookies.clear()

        async def keys() -> list[tuple[Any, ...]]:
            found = [(await client.get(f"/v1/api-keys/{id}", headers=HERE | owner)).json() for id in ids]
            return [(key["status"], key.get("lacks")) for key in found]

        async def change(**what: Any) -> None:
            answer = await client.post(f"/v1/members/{bob}/change", json=what, headers=ORIGIN | owner)
            assert answer.json()["keys"] == 2

        async def statuses() -> list[int]:
            asked = {"name": "x", "permissions": ["sessions.read"]}
            answers = [await client.get("/v1/api-keys", headers=token), await client.get("/v1/api-keys", headers=its_token)]
            return [
                answer.status_code
                for answer in (*answers, await client.post("/v1/api-keys", json={**asked, "expires_in": "0"}, headers=token))
            ]

        assert await statuses() == [200, 200, 422] and await keys() == [("active", None), ("active", None)]
        await change(role="developer")
        assert await statuses() == [200, 200, 403] and await keys() == [("active", ["keys.manage"]), ("active", None)]
        await change(disabled=True)
        told = (await client.get("/v1/api-keys", headers=token)).json()
        assert "helmr key rotate" in told["hint"]
        assert await statuses() == [401, 401, 401] and await keys() == [("suspended", None), ("suspended", None)]
        await change(disabled=False, role="admin")
        assert await statuses() == [200, 200, 422]
        assert (await client.post(f"/v1/members/{bob}/remove", json={}, headers=ORIGIN | owner)).json()["keys"] == 2
        assert await statuses() == [401, 401, 401]
        theirs = await client.post(f"/v1/api-keys/{ids[0]}/rotate", json={}, headers=ORIGIN | HERE | owner)
        token = {"Authorization": f"Bearer {theirs.json()['token']}"}
        assert (await client.get("/v1/api-keys", headers=token)).status_code == 200, "it is the owner's now"


async def test_admins_read_what_people_did_to_the_installation_and_nobody_else(database, tmp_path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        owner = as_owner(client)
        await add(client, "bob@example.com", "viewer")
        client.cookies.clear()
        wrong = {"email": "ada@example.com", "password": PASSWORD + "x"}
        assert (await client.post("/auth/sign-in", json=wrong, headers=ORIGIN)).status_code == 401
        page = (await client.get("/v1/audit/installation", headers=owner)).json()["items"]
        assert [entry["what"] for entry in page][:2] == ["sign_in_failed", "member_added"]
        assert page[1]["by"]["name"] == "Ada" and page[1]["about"] == "bob@example.com as viewer" and page[0]["address"] == "192.0.2.9"
        assert PASSWORD not in str(page)
        narrowed = (await client.get("/v1/audit/installation", headers=owner, params={"what": "member_", "limit": "1"})).json()
        assert [entry["what"] for entry in narrowed["items"]] == ["member_added"]
        late = {"since": "2999-01-01T00:00:00+01:00"}
        assert (await client.get("/v1/audit/installation", headers=owner, params=late)).json()["items"] == []
        for wrong_time in ("yesterday", "2026-11-30T08:00:00", "0001-01-01T00:00:00+23:59"):
            answer = await client.get("/v1/audit/installation", headers=owner, params={"until": wrong_time})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_value"), answer.text
