"""`helmr login` by a person's browser, `whoami`, `logout`, and the Environment that commands name. SPEC 13, 14."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.client.scripted_http import Reply, Request, problem, scripted

pytestmark = pytest.mark.anyio

TOKEN = "hlmr_ut_0123456789"
PERSON = {"id": "p", "email": "ada@example.com", "name": "Ada", "role": "owner"}
PAGE = {"items": [], "next_cursor": None}
ASKED = {
    "device_code": "secret-device-code",
    "user_code": "BCDF-GHJK",
    "verification_uri": "https://h/auth/device",
    "verification_uri_complete": "https://h/auth/device?code=BCDF-GHJK",
    "expires_in": 900,
    "interval": 0,
}


def installation(*, pending: list[Reply] | None = None, environments: tuple[str, ...] = ("default/main",)) -> Any:
    waiting = pending or []

    def answer(request: Request) -> Reply:
        if request.path == "/auth/device":
            assert "authorization" not in request.headers
            return Reply(ASKED)
        if request.path == "/auth/device/token":
            given = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 60, "person": PERSON}
            return waiting.pop(0) if waiting else Reply(given)
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        if request.path == "/auth/me":
            return Reply({"person": PERSON, "signed_in_by": "cli", "ends_at": "2030-01-01T00:00:00Z"})
        if request.path == "/auth/sign-out":
            return Reply({"ended": 1})
        return Reply(PAGE) if request.headers.get("helmr-environment") in environments else problem("environment_not_found", 404)

    return answer


async def test_login_waits_for_the_person_and_saves_the_token_for_this_user_alone(helmr: Helmr, tmp_path: Path) -> None:
    pending = [problem("authorization_pending", 400, interval=0), problem("slow_down", 400, interval=0)]
    async with scripted(installation(pending=pending)) as server:
        done = await helmr("login", server.url, "--device", "--json")
        known = await helmr("whoami", "--json")
        listed = await helmr("session", "list", "--json")
        gone = await helmr("logout", "--json")
    path = tmp_path / ".config/helmr/login.json"
    assert done.json == {"url": server.url, "file": str(path), "person": "ada@example.com", "environment": "default/main"}
    assert "https://h/auth/device?code=BCDF-GHJK" in done.err and "BCDF-GHJK" in done.err
    assert TOKEN not in done.out + done.err and "secret-device-code" not in done.out + done.err
    assert (known.json["person"], known.json["role"], known.json["environment"]) == ("ada@example.com", "owner", "default/main")
    assert listed.code == 0 and gone.json == {"removed": True} and not path.exists()
    assert server.requests[-1].path == "/auth/sign-out"


async def test_the_saved_file_is_private_and_has_the_default_environment(helmr: Helmr, tmp_path: Path) -> None:
    async with scripted(installation(environments=("shop/live",))) as server:
        done = await helmr("login", server.url, "--device", "-p", "shop", "-e", "live")
    path = tmp_path / ".config/helmr/login.json"
    assert done.code == 0 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"url": server.url, "api_key": TOKEN, "environment": "shop/live"}


async def test_an_environment_that_is_not_there_saves_nothing_and_leaves_no_token(helmr: Helmr, tmp_path: Path) -> None:
    async with scripted(installation()) as server:
        done = await helmr("login", server.url, "--device", "-e", "other", "--json")
    assert done.code == 3 and json.loads(done.err.splitlines()[-1])["error"]["code"] == "environment_not_found"
    assert server.requests[-1].path == "/auth/sign-out" and not (tmp_path / ".config/helmr/login.json").exists()


@pytest.mark.parametrize("code", ["access_denied", "expired_token"])
async def test_a_login_that_was_refused_or_late_says_so(helmr: Helmr, tmp_path: Path, code: str) -> None:
    async with scripted(installation(pending=[problem(code, 403 if code == "access_denied" else 400)])) as server:
        done = await helmr("login", server.url, "--device", "--json")
    assert done.code == 1 and json.loads(done.err.splitlines()[-1])["error"]["code"] == code
    assert not (tmp_path / ".config/helmr/login.json").exists()


async def test_a_command_names_another_environment_in_part_or_in_whole(helmr: Helmr) -> None:
    every = ("default/main", "default/test", "shop/main", "shop/test")
    async with scripted(installation(environments=every)) as server:
        await helmr("login", server.url, "--device")
        for options in ((), ("-e", "test"), ("-p", "shop"), ("--project", "shop", "--environment", "test")):
            assert (await helmr("session", "list", *options, "--json")).code == 0
    named = [request.headers["helmr-environment"] for request in server.requests if request.path == "/v1/sessions"]
    assert named == ["default/main", "default/main", "default/test", "shop/main", "shop/test"]


async def test_what_names_no_environment_is_told_before_anything_is_sent(helmr: Helmr) -> None:
    async with scripted([]) as server:
        done = await helmr("session", "list", "-e", "a/b", "--json", server=server)
        assert (done.code, server.requests) == (2, [])


async def test_logout_forgets_also_where_the_server_is_gone(helmr: Helmr, tmp_path: Path) -> None:
    async with scripted(installation()) as server:
        await helmr("login", server.url, "--device")
    done = await helmr("logout", "--json")
    assert done.code == 4 and not (tmp_path / ".config/helmr/login.json").exists()


async def test_an_admin_gets_a_link_for_a_member_and_is_told_whose_it_is(helmr: Helmr) -> None:
    link = {"url": "https://h/auth/password-link?code=c", "expires_in": 86400}
    async with scripted([Reply(link), Reply(link), problem("forbidden", 403)]) as server:
        made = await helmr("member", "password-link", "bob@example.com", "--json", server=server)
        shown = await helmr("member", "password-link", "bob@example.com", server=server)
        refused = await helmr("member", "password-link", "owner@example.com", "--json", server=server)
    assert made.json == link and shown.out == f"{link['url']}\n" and "For them alone" in shown.err
    assert server.requests[0].path == "/auth/password-links" and server.requests[0].json() == {"email": "bob@example.com"}
    assert refused.code == 1 and refused.error["code"] == "forbidden"
