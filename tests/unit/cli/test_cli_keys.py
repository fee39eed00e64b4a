"""`helmr key`: a token is printed once, by what makes it. SPEC 13, 14."""

from __future__ import annotations

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.client.api_samples import HOLD, TIME
from tests.unit.client.scripted_http import Reply, problem, scripted

pytestmark = pytest.mark.anyio

TOKEN = "hlmr_sk_new-and-secret"
KEY = {"id": HOLD, "name": "ci", "permissions": ["sessions.read"], "status": "active", "ends": "cret", "created_at": TIME}


async def test_a_key_is_made_with_its_permissions_and_its_token_printed(helmr: Helmr) -> None:
    async with scripted([Reply({"key": KEY, "token": TOKEN}, status=201)] * 2) as server:
        arguments = ("key", "create", "ci", "--permission", "sessions.read", "--permission", "sessions.send", "--expires-in", "90d")
        plain = await helmr(*arguments, "--idempotency-key", "i", server=server)
        done = await helmr(*arguments, "--json", server=server)
    sent = {"name": "ci", "permissions": ["sessions.read", "sessions.send"], "expires_in": "90d"}
    assert [request.json() for request in server.requests] == [sent, sent] and server.requests[0].headers["idempotency-key"] == "i"
    assert plain.code == 0 and TOKEN in plain.out and done.json == {"key": KEY, "token": TOKEN}


async def test_a_token_that_was_lost_with_its_answer_is_told_with_the_remedy(helmr: Helmr) -> None:
    async with scripted([Reply({"key": KEY}, status=201)]) as server:
        done = await helmr("key", "create", "ci", "--permission", "sessions.read", server=server)
    assert done.code == 4 and f"helmr key revoke {HOLD} --yes" in done.err


async def test_keys_are_listed_shown_replaced_and_revoked(helmr: Helmr) -> None:
    page = {"items": [KEY, KEY | {"status": "revoked", "revoked_at": TIME}], "next_cursor": "more"}
    answers = [
        Reply(page),
        Reply(KEY | {"replaced_by": HOLD}),
        Reply({"key": KEY, "token": TOKEN}, status=201),
        Reply(KEY | {"status": "revoked"}),
        problem("api_key_not_found", 404),
    ]
    async with scripted(answers) as server:
        listed = await helmr("key", "list", server=server)
        shown = await helmr("key", "get", HOLD, server=server)
        replaced = await helmr("key", "rotate", HOLD, "--overlap", "1h", server=server)
        unsure = await helmr("key", "revoke", HOLD, server=server)
        revoked = await helmr("key", "revoke", HOLD, "--yes", server=server)
        unknown = await helmr("key", "get", HOLD, server=server)
    assert [line.split("\t")[:4] for line in listed.out.splitlines()] == [[HOLD, "ci", "active", "cret"], [HOLD, "ci", "revoked", "cret"]]
    assert "--cursor more" in listed.err and "sessions.read" in shown.out and TOKEN in replaced.out
    assert server.requests[2].json() == {"overlap": "1h"} and server.requests[2].path == f"/v1/api-keys/{HOLD}/rotate"
    assert unsure.code == 2 and "--yes" in unsure.err and "revoked" in revoked.out and unknown.code == 3
