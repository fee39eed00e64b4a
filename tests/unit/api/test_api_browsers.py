"""What browsers are given and believed: cookies, origins, hosts, pages. SPEC 14."""

from __future__ import annotations

import ipaddress
from typing import Any

import httpx
import pytest
from tests.unit.api.api_asking import is_problem
from tests.unit.api.api_fakes import KEY, World
from tests.unit.api.signin_fakes import CLI_TOKEN

from helmr.control.api import build_app
from helmr.control.api.auth_pages import ACCOUNT, ours
from helmr.control.api.site import Site

pytestmark = pytest.mark.anyio
SESSION = {"Cookie": "__Host-helmr_session=browser"}
LOCAL_SESSION = {"Cookie": "helmr_session=browser"}


def visiting(world: World, base: str, site: Site | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=build_app(world, site=site or Site(url=base))), base_url=base)


async def test_the_cookie_over_https_and_on_loopback(world: World) -> None:
    body = {"email": "a@example.com", "password": "right"}
    async with visiting(world, "https://helmr.example.com") as browser:
        given = (await browser.post("/auth/sign-in", json=body)).headers["set-cookie"]
        assert given == "__Host-helmr_session=token; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure"
    async with visiting(world, "http://127.0.0.1:4356") as browser:
        given = (await browser.post("/auth/sign-in", json=body)).headers["set-cookie"]
        assert given == "helmr_session=token; Path=/; Max-Age=60; HttpOnly; SameSite=Strict"
    async with visiting(world, "http://helmr.example.com") as browser:
        is_problem(await browser.post("/auth/sign-in", json=body), 403, "origin_refused")


async def test_a_write_by_a_cookie_comes_from_our_own_pages_only(world: World) -> None:
    async with visiting(world, "https://helmr.example.com") as browser:
        for extra, status in (
            ({}, 403),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://helmr.example.com"}, 403),
            ({"Sec-Fetch-Site": "same-site"}, 403),
            ({"Sec-Fetch-Site": "same-origin"}, 200),
            ({"Origin": "https://helmr.example.com"}, 200),
            ({"Origin": "https://helmr.example.com", "Host": "other.example.com"}, 403),
        ):
            asked = {**SESSION, **extra, "Helmr-Environment": "default/main"}
            assert (await browser.post("/auth/sign-out", json={}, headers=asked)).status_code == status
            control = await browser.post("/v1/blobs/missing", json={"digests": []}, headers=asked)
            assert control.status_code == status
        assert (await browser.get("/auth/me", headers=SESSION)).status_code == 200
        is_problem(await browser.get("/auth/me", headers={**SESSION, "Host": "rebound.example"}), 403, "origin_refused")


async def test_sign_in_from_another_sites_page_is_refused(world: World) -> None:
    """Or a stranger could have a person work under the stranger's name."""
    async with visiting(world, "https://helmr.example.com") as browser:
        body = {"email": "a@example.com", "password": "right"}
        is_problem(await browser.post("/auth/sign-in", json=body, headers={"Origin": "https://evil.example"}), 403, "origin_refused")
        form = {"email": "a@example.com", "password": "right"}
        is_problem(await browser.post("/auth/sign-in/form", data=form), 403, "origin_refused")


async def test_on_loopback_the_host_must_be_exactly_ours(world: World) -> None:
    async with visiting(world, "http://127.0.0.1:4356") as browser:
        for host, status in (
            ("127.0.0.1:4356", 200),
            ("localhost:4356", 200),
            ("127.0.0.1:4357", 403),
            ("127.0.0.1", 403),
            ("rebound.example:4356", 403),
            ("127.0.0.1.evil.example:4356", 403),
        ):
            assert (await browser.get("/auth/me", headers={**LOCAL_SESSION, "Host": host})).status_code == status, host
        assert (await browser.get("/auth/me", headers=SESSION)).status_code == 401, "the name of the other cookie"


async def test_a_person_names_the_environment_and_a_key_implies_it(world: World) -> None:
    async with visiting(world, "https://helmr.example.com") as client:
        key, person = {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"Bearer {CLI_TOKEN}"}
        assert (await client.get("/v1/sessions", headers=person)).status_code == 200
        assert world.asked("principals_of_person") == ((None,), {})
        assert (await client.get("/v1/sessions", headers={**key, "Helmr-Environment": "default/main"})).status_code == 200
        is_problem(await client.get("/v1/sessions", headers={**key, "Helmr-Environment": "other/main"}), 404, "environment_not_found")
        is_problem(await client.get("/auth/me", headers=key), 401, "unauthenticated")


async def test_pages_run_no_script_and_show_what_asks_as_text(world: World) -> None:
    async with visiting(world, "https://helmr.example.com") as browser:
        shown = await browser.get("/auth/device?code=BCDF-GHJK", headers=SESSION)
        assert "&lt;script&gt;" in shown.text and "<script" not in shown.text and "Ada &lt;b&gt;" in shown.text
        policy = shown.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and shown.headers["x-content-type-options"] == "nosniff"
        away = await browser.get('/auth/device?code=BCDF-GHJK"><b>')
        assert "<b>" not in away.text and away.status_code == 200


async def test_what_a_form_was_refused_for_is_said_on_its_page(world: World) -> None:
    async with visiting(world, "https://helmr.example.com") as browser:
        asked = {"email": "<i>@example.com", "password": "wrong password", "next": "https://evil.example"}
        answer = await browser.post("/auth/sign-in/form", data=asked, headers={"Origin": "https://helmr.example.com"})
        assert answer.status_code == 401 and "is wrong" in answer.text
        assert "wrong password" not in answer.text and "<i>" not in answer.text and "evil" not in answer.text


@pytest.mark.parametrize("path", ["https://evil.example", "//evil.example", "/\\evil.example", "", "auth", "/a\r\nSet-Cookie: x", "/é"])
async def test_a_browser_is_sent_to_our_own_pages_only(path: str) -> None:
    assert ours(path) == ACCOUNT


async def test_a_look_at_the_headers_of_a_code_uses_nothing_up(world: World) -> None:
    async with visiting(world, "https://helmr.example.com") as browser:
        assert (await browser.head("/auth/code/code")).status_code == 303
        assert not [name for name, _, _ in world.calls if name == "browser_codes_use"]
        assert (await browser.get("/auth/code/wrong")).status_code == 410


async def test_another_sites_page_can_not_sign_a_browser_in_by_a_code(world: World) -> None:
    async with visiting(world, "https://helmr.example.com") as browser:
        for site, status in (("cross-site", 403), ("same-site", 403), ("none", 303), ("same-origin", 303)):
            assert (await browser.get("/auth/code/code", headers={"Sec-Fetch-Site": site})).status_code == status
        assert len([name for name, _, _ in world.calls if name == "browser_codes_use"]) == 2


@pytest.mark.parametrize(
    ("client", "told", "address"),
    [
        ("198.51.100.1", "203.0.113.5", "198.51.100.1"),
        ("10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "1.2.3.4, 203.0.113.5, 10.0.0.2", "203.0.113.5"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "nonsense", "nonsense"),
    ],
)
async def test_an_address_is_believed_from_known_proxies_alone(world: World, client: str, told: str, address: str) -> None:
    site = Site(url="https://api", proxies=(ipaddress.ip_network("10.0.0.0/8"),))
    transport = httpx.ASGITransport(app=build_app(world, site=site), client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="https://api") as sender:
        await sender.post("/auth/device", json={"client": "x"}, headers={"X-Forwarded-For": told} if told else {})
    asked: Any = world.asked("devices_ask")
    assert asked[0] == (address,)


async def test_the_way_to_a_provider_and_back(world: World) -> None:
    async with visiting(world, "http://127.0.0.1:4356") as browser:
        away = await browser.get("/auth/oidc?next=/auth/device")
        assert (away.status_code, away.headers["location"]) == (303, "https://provider.example/authorize?state=s")
        assert away.headers["set-cookie"].startswith("helmr_flow=secret.")
        assert away.headers["set-cookie"].endswith("; HttpOnly; SameSite=Lax"), "the provider's page sends the browser back"
        back = await browser.get("/auth/oidc/callback?code=c&state=s&iss=i&session_state=ignored&session_state=twice")
        assert back.status_code == 200 and 'href="/auth/device"' in back.text
        asked = world.asked("provider_finish")
        assert asked[0] == () and (asked[1]["code"], asked[1]["state"], asked[1]["told_issuer"]) == ("c", "s", "i")
        given = back.headers.get_list("set-cookie")
        assert given[0].startswith("helmr_session=token;") and given[1].startswith("helmr_flow=; Path=/; Max-Age=0")


@pytest.mark.parametrize(
    ("query", "cookie", "status"),
    [
        ("code=c&state=s", "", 410),
        ("error=access_denied&error_description=<script>", "helmr_flow=secret.x", 403),
        ("error=<script>", "helmr_flow=secret.x", 403),
    ],
)
async def test_a_way_back_that_leads_nowhere_is_the_page_to_sign_in(world: World, query: str, cookie: str, status: int) -> None:
    async with visiting(world, "http://127.0.0.1:4356") as browser:
        answer = await browser.get(f"/auth/oidc/callback?{query}", headers={"Cookie": cookie} if cookie else {})
        assert answer.status_code == status and 'action="/auth/sign-in/form"' in answer.text and "<script" not in answer.text
        assert "set-cookie" not in answer.headers
