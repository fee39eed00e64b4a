"""A person from the set-up token to a command line that works, over HTTP and against a real database. SPEC 11, 14."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from tests.service.signin.entry import CHEAP, PASSWORD

from helmr.control.api import build_app
from helmr.control.api.site import Site
from helmr.control.service.plane import ControlPlane, PlaneConfig
from helmr.control.service.principals import ensure_environment
from helmr.control.store.pool import Database
from helmr.objects.folder import FolderStore

pytestmark = pytest.mark.anyio
URL = "https://helmr.example.com"
ORIGIN = {"Origin": URL}
HERE = {"Helmr-Environment": "default/main"}


@asynccontextmanager
async def opened(dsn: str, tmp_path: Path) -> AsyncIterator[tuple[ControlPlane, httpx.AsyncClient]]:
    database = Database(dsn, size=4)
    await database.start()
    async with database.connection() as connection:
        await ensure_environment(connection, "default", "main")
    plane = ControlPlane(database, FolderStore(tmp_path / "blobs"), PlaneConfig(password_cost=CHEAP))
    transport = httpx.ASGITransport(app=build_app(plane, site=Site(url=URL)), client=("192.0.2.9", 1))
    await plane.start()
    try:
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            yield plane, client
    finally:
        await plane.stop()
        await database.stop()


async def set_up(plane: ControlPlane, client: httpx.AsyncClient) -> Any:
    asked = {"token": await plane.set_up.token(), "email": "ada@example.com", "name": "Ada", "password": PASSWORD}
    made = await client.post("/auth/setup", json=asked)
    assert made.status_code == 201 and made.json()["person"]["role"] == "owner"
    return made.json()["person"]


async def device_token(client: httpx.AsyncClient) -> str:
    asked = (await client.post("/auth/device", json={"client": "helmr on laptop"})).json()
    waiting = await client.post("/auth/device/token", json={"device_code": asked["device_code"]})
    assert (waiting.status_code, waiting.json()["code"]) == (400, "authorization_pending")
    page = await client.get(asked["verification_uri_complete"])
    code = re.search(r'name="code" value="([A-Z-]+)"', page.text)
    assert code is not None and code[1] == asked["user_code"] and "helmr on laptop" in page.text and "192.0.2.9" in page.text
    assert "Allowed" in (await client.post("/auth/device/form", data={"code": code[1], "decision": "allow"}, headers=ORIGIN)).text
    given = (await client.post("/auth/device/token", json={"device_code": asked["device_code"]})).json()
    assert given["token_type"] == "Bearer"
    again = await client.post("/auth/device/token", json={"device_code": asked["device_code"]})
    assert again.json()["code"] == "expired_token"
    return given["access_token"]


async def test_from_the_set_up_token_to_a_command_line(database: str, tmp_path: Path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        person = await set_up(plane, client)
        assert (await client.get("/auth/me")).json()["person"] == person
        token = {"Authorization": f"Bearer {await device_token(client)}"}
        client.cookies.clear()
        assert (await client.get("/auth/me", headers=token)).json()["signed_in_by"] == "cli"
        assert (await client.get("/v1/sessions", headers=token)).json()["code"] == "environment_required"
        for wrong in ("default/other", "default", "", "a\x00b/c"):
            answer = await client.get("/v1/sessions", headers={**token, "Helmr-Environment": wrong})
            assert answer.json()["code"] == "environment_not_found"
        assert (await client.get("/v1/sessions", headers={**token, **HERE})).status_code == 200
        made = await client.post("/v1/api-keys", json={"name": "ci", "permissions": ["sessions.read"]}, headers={**token, **HERE})
        assert made.status_code == 201 and made.json()["key"]["created_by"] == {"kind": "user", "id": person["id"]}
        key = {"Authorization": f"Bearer {made.json()['token']}"}
        assert (await client.get("/v1/sessions", headers={**key, **HERE})).status_code == 200
        assert (await client.get("/v1/sessions", headers={**key, "Helmr-Environment": "x/y"})).status_code == 404
        assert (await client.post("/auth/sign-out", json={}, headers=token)).status_code == 200
        assert (await client.get("/v1/sessions", headers={**token, **HERE})).status_code == 401


async def test_roles_act_at_once(database: str, tmp_path: Path) -> None:
    """14: changes act with the next request; who is disabled loses all."""
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        connection = await asyncpg.connect(database)
        made = await client.post("/v1/api-keys", json={"name": "a", "permissions": ["sessions.read"]}, headers={**ORIGIN, **HERE})
        assert made.status_code == 201
        await connection.execute("UPDATE users SET role = 'viewer'")
        assert (await client.get("/v1/api-keys", headers=HERE)).status_code == 200
        refused = await client.post("/v1/api-keys", json={"name": "b", "permissions": ["sessions.read"]}, headers={**ORIGIN, **HERE})
        assert (refused.status_code, refused.json()["permission"]) == (403, "keys.manage")
        assert (await client.post("/auth/password-links", json={"email": "ada@example.com"}, headers=ORIGIN)).status_code == 403
        await connection.execute("UPDATE users SET disabled_at = now()")
        for path in ("/auth/me", "/v1/sessions"):
            assert (await client.get(path, headers=HERE)).status_code == 401
        await connection.close()


async def test_pages_sign_in_out_and_set_a_password(database: str, tmp_path: Path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        token = await plane.set_up.token()
        page = await client.get(f"/auth/setup?code={token}")
        assert str(token) in page.text
        form = {"token": str(token), "email": "ada@example.com", "name": "Ada", "password": "short"}
        refused = await client.post("/auth/setup/form", data=form, headers=ORIGIN)
        assert refused.status_code == 422 and "at least 12 characters" in refused.text
        assert (await client.post("/auth/setup/form", data={**form, "password": PASSWORD}, headers=ORIGIN)).status_code == 303
        assert "ada@example.com" in (await client.get("/auth/account")).text
        link = (await client.post("/auth/password-links", json={"email": "ada@example.com"}, headers=ORIGIN)).json()["url"]
        await client.post("/auth/account/sign-out", headers=ORIGIN)
        assert 'action="/auth/sign-in/form"' in (await client.get("/auth/account")).text
        code = httpx.URL(link).params["code"]
        assert code in (await client.get(link)).text
        new = {"code": code, "password": "another long password"}
        assert (await client.post("/auth/password-link/form", data=new, headers=ORIGIN)).status_code == 303
        assert (await client.post("/auth/password-link/form", data=new, headers=ORIGIN)).status_code == 410
        client.cookies.clear()
        wrong = {"email": "ada@example.com", "password": PASSWORD, "next": "/auth/device"}
        assert (await client.post("/auth/sign-in/form", data=wrong, headers=ORIGIN)).status_code == 401
        right = await client.post("/auth/sign-in/form", data={**wrong, "password": "another long password"}, headers=ORIGIN)
        assert (right.status_code, right.headers["location"]) == (303, "/auth/device")


async def test_a_browser_link_and_too_many_attempts_over_http(database: str, tmp_path: Path) -> None:
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        link = (await client.post("/auth/browser-links", json={}, headers=ORIGIN)).json()["url"]
        client.cookies.clear()
        assert (await client.get(link)).status_code == 303
        assert (await client.get("/auth/me")).json()["signed_in_by"] == "browser"
        assert (await client.get(link)).status_code == 410
        for _ in range(10):
            await client.post("/auth/sign-in", json={"email": "x@example.com", "password": "wrong"})
        refused = await client.post("/auth/sign-in", json={"email": "x@example.com", "password": "wrong"})
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_attempts")
        assert 50 < int(refused.headers["retry-after"]) <= 60


async def test_nothing_secret_is_in_an_error_or_the_log(database: str, tmp_path: Path, caplog: Any, capfd: Any) -> None:
    sentinel = "sentinel-of-a-password"
    async with opened(database, tmp_path) as (plane, client):
        await set_up(plane, client)
        texts = [
            (await client.post("/auth/sign-in", json={"email": "ada@example.com", "password": sentinel})).text,
            (await client.post("/auth/sign-in", json={"email": "ada@example.com", "password": sentinel, "x": 1})).text,
            (await client.post("/auth/sign-in", json={"email": sentinel, "password": [sentinel]})).text,
            (await client.post("/auth/setup", json={"token": sentinel, "email": "a", "name": "n", "password": sentinel})).text,
            (await client.post("/auth/password", json={"old": sentinel, "new": "sentinel"}, headers=ORIGIN)).text,
            (await client.get("/auth/me", headers={"Authorization": f"Bearer hlmr_ut_{sentinel}"})).text,
            (await client.post("/auth/sign-in/form", data={"email": "a", "password": sentinel}, headers=ORIGIN)).text,
        ]
    written = capfd.readouterr()
    assert sentinel not in "\n".join([*texts, caplog.text, written.out, written.err])
