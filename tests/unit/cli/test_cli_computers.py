"""`helmr computer`: for people and for programs. SPEC 13, [C1], [C6], [C9]."""

from __future__ import annotations

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.client.api_samples import COMPUTER, DEPLOYMENT, TIME, computer, session
from tests.unit.client.scripted_http import Reply, problem, scripted

pytestmark = pytest.mark.anyio

PATH = f"/v1/computers/{COMPUTER}"
HOSTILE = "\x1b[2Jevil"


async def test_a_computer_is_made_with_its_key_and_the_keys_of_the_request(helmr: Helmr) -> None:
    made = {"id": COMPUTER, "deployment_id": DEPLOYMENT, "template": "repo"}
    async with scripted([Reply(made, status=201)] * 2) as server:
        plain = await helmr("computer", "create", "repo", "--key", "mine", "--idempotency-key", "i", server=server)
        done = await helmr("computer", "create", "repo", "--json", server=server)
    assert COMPUTER in plain.out and done.json == made
    assert server.requests[0].json() == {"template": "repo", "key": "mine"} and server.requests[1].json() == {"template": "repo"}
    assert server.requests[0].headers["idempotency-key"] == "i"


async def test_computers_are_listed_with_where_they_are(helmr: Helmr) -> None:
    page = {"items": [computer(key="k"), computer(status="deleting", residency="running")], "next_cursor": "more"}
    async with scripted([Reply(page)] * 2) as server:
        plain = await helmr("computer", "list", "--status", "available", "--status", "deleting", "--template", "repo", server=server)
        done = await helmr("computer", "list", "--limit", "2", "--cursor", "c", "--json", server=server)
    assert [line.split("\t") for line in plain.out.splitlines()] == [
        [COMPUTER, "hibernated", "repo", "0", TIME, "k"], [COMPUTER, "deleting", "repo", "0", TIME, ""],
    ]  # fmt: skip
    assert "--cursor more" in plain.err and done.json == page
    assert [request.target for request in server.requests] == [
        "/v1/computers?status=available&status=deleting&template=repo", "/v1/computers?cursor=c&limit=2",
    ]  # fmt: skip


async def test_a_computer_is_shown_with_when_it_goes_and_what_is_wrong(helmr: Helmr) -> None:
    shapes = [
        computer(delete_after="later", slept_at="then"),
        computer(explicit=True, key="k"),
        computer(status="deleting", error={"code": "refused", "message": HOSTILE}),
    ]
    async with scripted([Reply(shape) for shape in shapes]) as server:
        implicit, explicit, failed = [await helmr("computer", "get", COMPUTER, server=server) for _ in shapes]
    assert "later" in implicit.out and "then" in implicit.out and "1024 MiB" in implicit.out
    assert "by hand only" in explicit.out
    assert "deleting" in failed.out and "refused" in failed.out


async def test_members_are_listed(helmr: Helmr) -> None:
    page = {"items": [session(key="k")], "next_cursor": None}
    async with scripted([Reply(page)]) as server:
        plain = await helmr("computer", "members", COMPUTER, "--limit", "7", server=server)
    assert plain.out.split("\t") == [session()["id"], "open", "reviewer", TIME, "k\n"]
    assert server.requests[0].target == f"{PATH}/members?limit=7"


@pytest.mark.parametrize("how", ["hibernate", "wake", "recover"])
async def test_sleep_and_wake_are_asked_for(helmr: Helmr, how: str) -> None:
    receipt = {"computer_id": COMPUTER, "status": "available", "residency": "waking"}
    async with scripted([Reply(receipt, status=202), problem("computer_busy", 409)]) as server:
        done = await helmr("computer", how, COMPUTER, "--json", "--idempotency-key", "i", server=server)
        refused = await helmr("computer", how, COMPUTER, server=server)
    assert done.json == receipt and refused.code == 1 and "computer_busy" in refused.err
    assert (server.requests[0].method, server.requests[0].path) == ("POST", f"{PATH}/{how}")
    assert server.requests[0].headers["idempotency-key"] == "i"


async def test_deleting_needs_a_yes_and_says_what_it_waits_for(helmr: Helmr) -> None:
    receipt = {"computer_id": COMPUTER, "status": "deleting", "residency": "cold"}
    async with scripted([Reply(receipt, status=202), problem("computer_not_found", 404)]) as server:
        unsure = await helmr("computer", "delete", COMPUTER, server=server)
        done = await helmr("computer", "delete", COMPUTER, "--yes", server=server)
        unknown = await helmr("computer", "delete", COMPUTER, "--yes", server=server)
    assert unsure.code == 2 and "--yes" in unsure.err
    assert "deleting" in done.out and unknown.code == 3
    assert [(request.method, request.path) for request in server.requests] == [("DELETE", PATH)] * 2
