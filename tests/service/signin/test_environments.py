"""Projects and Environments: made and limited by admins, seen by members, and apart from each other. SPEC 1, 14, [S4], [S5], [O1]."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.signin.entry import PASSWORD
from tests.service.signin.test_over_http import ORIGIN, opened, set_up

from helmr.control.service.limits import AdmissionLimit, Limits
from helmr.control.service.signin.people import add_person
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def make(client, path: str, body: dict[str, Any], **headers: str) -> Any:
    return await client.post(f"/v1/{path}", json=body, headers=ORIGIN | headers)


async def fresh(client, name: str = "main") -> Any:
    assert (await make(client, "projects", {"name": "shop"})).status_code in (201, 409)
    made = await make(client, "environments", {"project": "shop", "name": name})
    assert made.status_code == 201
    return made.json()


async def test_a_project_and_its_environments_are_made_listed_and_used_by_their_path(database, tmp_path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        main = await fresh(client)
        assert (main["path"], main["limits"]["admission_rate"], main["limits"]["max_init_duration"]) == ("shop/main", "unlimited", "10m")
        assert "admission_burst" not in main["limits"] and main["limits"]["payload_retention"] == "never"
        staging = await fresh(client, "staging")
        (shop, _default) = (await client.get("/v1/projects")).json()["items"]
        assert (shop["name"], shop["environments"]) == ("shop", ["main", "staging"])
        listed = (await client.get("/v1/environments", params={"project": "shop"})).json()["items"]
        assert [item["id"] for item in listed] == [staging["id"], main["id"]]
        first = (await client.get("/v1/environments", params={"limit": 1})).json()
        second = (await client.get("/v1/environments", params={"limit": 1, "cursor": first["next_cursor"]})).json()
        assert [first["items"][0]["id"], second["items"][0]["id"]] == [staging["id"], main["id"]]
        for path in ("shop/main", "shop/staging"):
            key = await make(client, "api-keys", {"name": "k", "permissions": ["sessions.read"]}, **{"Helmr-Environment": path})
            assert key.status_code == 201
            mine = (await client.get("/v1/api-keys", headers={"Helmr-Environment": path})).json()["items"]
            assert [item["id"] for item in mine] == [key.json()["key"]["id"]], "one Environment's keys are invisible to another [O1]"


async def test_limits_are_set_one_by_one_and_act_at_once(database, tmp_path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        id = (await fresh(client))["id"]

        async def limit(**asked: Any) -> Any:
            return await make(client, f"environments/{id}/limits", asked)

        found = (await limit(admission_rate="0.5", payload_retention="30d", max_init_duration="2m")).json()["limits"]
        assert (found["admission_rate"], found["admission_burst"], found["payload_retention"]) == ("0.5", 1, "30d")
        assert found["max_init_duration"] == "2m" and found["trigger_grace"] == "1h", "what isn't named stays"
        found = (await limit(admission_rate="20", admission_burst=50)).json()["limits"]
        assert (found["admission_rate"], found["admission_burst"]) == ("20", 50)
        assert (await limit(admission_rate="40")).json()["limits"]["admission_burst"] == 50
        assert (await limit(admission_rate="unlimited", payload_retention="never")).json()["limits"]["admission_rate"] == "unlimited"
        await limit(admission_rate="0.001", admission_burst=1)
        assert (await Limits(plane.database).get(id)).admission == AdmissionLimit(rate=0.001, burst=1)


@pytest.mark.parametrize(
    "asked",
    [
        {"admission_rate": "fast"},
        {"admission_rate": "0"},
        {"admission_rate": "nan"},
        {"admission_rate": "inf"},
        {"admission_burst": 5},
        {"admission_rate": "unlimited", "admission_burst": 5},
        {"payload_retention": "soon"},
        {"computer_retention": "-1d"},
        {"trigger_grace": "never"},
        {"trigger_grace": "10s"},
        {"max_init_duration": "0s"},
        {"max_init_duration": "25h"},
    ],
)
async def test_a_limit_that_makes_no_sense_is_refused_and_changes_nothing(database, tmp_path, asked) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        made = await fresh(client)
        refused = await make(client, f"environments/{made['id']}/limits", {"computer_retention": "1d"} | asked)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_value"), refused.text
        assert (await client.get(f"/v1/environments/{made['id']}")).json() == made


async def test_names_are_checked_taken_once_and_a_retry_makes_nothing_twice(database, tmp_path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        for name in ("", "-a", "a b", "a/b", "x" * 129, "é"):
            assert (await make(client, "projects", {"name": name})).status_code in (400, 422)
        one = await make(client, "projects", {"name": "shop"}, **{"Idempotency-Key": "k"})
        again = await make(client, "projects", {"name": "shop"}, **{"Idempotency-Key": "k"})
        assert one.json() == again.json() and again.headers["idempotency-replayed"] == "true"
        assert (await make(client, "projects", {"name": "shop"})).json()["code"] == "project_exists"
        assert (await make(client, "projects", {"name": "other"}, **{"Idempotency-Key": "k"})).json()["code"] == "idempotency_conflict"
        assert (await make(client, "environments", {"project": "nothing", "name": "main"})).json()["code"] == "project_not_found"
        await fresh(client)
        assert (await make(client, "environments", {"project": "shop", "name": "main"})).json()["code"] == "environment_exists"
        for id in (new_id(), "no-id"):
            assert (await make(client, f"environments/{id}/limits", {"trigger_grace": "2h"})).json()["code"] == "environment_not_found"


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("developer", False), ("admin", True), ("owner", True)])
async def test_admins_and_owners_make_and_limit_them_and_every_member_sees_them(database, tmp_path, role, may) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        id = (await fresh(client))["id"]
        bob = await plane.database.run(lambda connection: add_person(connection, email="b@example.com", name="B", role=role))
        link = (await make(client, "../auth/password-links", {"email": bob.email})).json()["url"]
        client.cookies.clear()
        await make(client, "../auth/password-links/use", {"code": link.partition("code=")[2], "password": PASSWORD})
        assert (await client.get(f"/v1/environments/{id}")).status_code == (await client.get("/v1/projects")).status_code == 200
        for path, body in (
            ("projects", {"name": "new"}),
            ("environments", {"project": "shop", "name": "new"}),
            (f"environments/{id}/limits", {"trigger_grace": "2h"}),
        ):
            answered = await make(client, path, body)
            assert (answered.status_code < 300) == may, answered.text
            assert may or answered.json()["permission"] == "projects.manage"
