"""`helmr worker list|get|drain|undrain|remove`; alone it runs a worker. SPEC 13."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.client.api_samples import COMPUTER, HOLD, TIME
from tests.unit.client.scripted_http import Reply, problem, scripted

pytestmark = pytest.mark.anyio

WORKER: dict[str, Any] = {
    "id": HOLD,
    "name": "build-1",
    "state": "connected",
    "driver": "bubblewrap",
    "credential": "own",
    "rotating": False,
    "capacity": {"cpu": 8.0, "memory": 16 << 30, "cpu_used": 1.5, "memory_used": 4 << 30},
    "computers": {"running": 1, "sleeping": 2, "stopped": 0},
    "storage": {"total": 10 << 30, "free": 2 << 30},
    "silent_seconds": 1.5,
    "lease_until": TIME,
    "created_at": TIME,
}
HELD = {"id": COMPUTER, "template": "repo", "residency": "running", "cpu": 1.0, "memory": 1 << 30}


async def test_workers_are_listed_with_their_room_and_their_disks(helmr: Helmr) -> None:
    full = WORKER | {"state": "draining", "storage": {"total": 10 << 30, "free": 1 << 30, "pressed_since": TIME}}
    async with scripted([Reply({"items": [WORKER, full], "next_cursor": "more"})]) as server:
        listed = await helmr("worker", "list", "--limit", "2", server=server)
    first, second = [line.split("\t") for line in listed.out.splitlines()]
    assert first[1:7] == ["build-1", "connected", "bubblewrap", "1.5/8", "4.0/16.0", "1 run, 2 sleep, 0 stopped"]
    assert first[7] == "2.0 of 10.0 GiB" and second[7].endswith(", full") and "--cursor more" in listed.err


async def test_a_worker_is_shown_with_why_it_drains_what_it_waits_for_and_what_is_with_it(helmr: Helmr) -> None:
    drain = {"reason": "removing", "since": TIME, "by": {"kind": "user", "id": HOLD}}
    shown = WORKER | {"drain": drain, "waits": {"running": 1, "unsaved": 2}, "held": [HELD], "environments": ["shop/main"], "version": "1"}
    async with scripted([Reply(shown), problem("worker_not_found", 404)]) as server:
        found = await helmr("worker", "get", "build-1", server=server)
        unknown = await helmr("worker", "get", "nobody", server=server)
    assert f"removing since {TIME} by user {HOLD}" in found.out and "1 Computers that run, 2 Computers without a save" in found.out
    assert "shop/main" in found.out and COMPUTER in found.out and unknown.code == 3


async def test_a_worker_is_drained_let_go_on_and_removed_only_when_that_is_meant(helmr: Helmr) -> None:
    answers = [
        Reply(WORKER | {"state": "draining"}, status=202),
        Reply(WORKER),
        Reply(WORKER | {"state": "removing", "waits": {"running": 1}}, status=202),
        Reply(WORKER | {"state": "removed"}, status=202),
    ]
    async with scripted(answers) as server:
        drained = await helmr("worker", "drain", "build-1", "--idempotency-key", "i", server=server)
        back = await helmr("worker", "undrain", "build-1", "--json", server=server)
        unsure = await helmr("worker", "remove", "build-1", server=server)
        leaving = await helmr("worker", "remove", "build-1", "--yes", server=server)
        gone = await helmr("worker", "remove", "build-1", "--yes", "--force", server=server)
    assert (
        "build-1 is draining" in drained.out and server.requests[0].headers["idempotency-key"] == "i" and back.json == WORKER | {"held": []}
    )
    assert unsure.code == 2 and "--yes" in unsure.err
    assert "removing, and waits for 1 Computers that run" in leaving.out and gone.out == "build-1 is removed.\n"
    assert [request.json() for request in server.requests[2:]] == [{}, {"force": True}]


async def test_options_of_the_worker_that_runs_here_are_none_of_its_commands(helmr: Helmr) -> None:
    mixed = await helmr("worker", "--name", "x", "list")
    assert mixed.code == 2 and "behind 'list'" in mixed.err
    typo = await helmr("worker", "lst")
    assert typo.code == 2 and "'list'" in typo.err


async def test_a_token_is_made_and_printed_once(helmr: Helmr) -> None:
    made = {"id": HOLD, "expires_at": TIME, "token": "hlmr_we_new", "environments": ["shop/main"], "name": "build-1"}
    lost = {"id": HOLD, "expires_at": TIME}
    async with scripted([Reply(made, status=201), Reply(lost, status=201), Reply(WORKER | {"rotating": True}, status=202)]) as server:
        arguments = ("--name", "build-1", "--driver", "gvisor", "--serves", "shop/main", "--expires-in", "10m")
        done = await helmr("worker", "token", *arguments, server=server)
        again = await helmr("worker", "token", server=server)
        renewed = await helmr("worker", "rotate", "build-1", server=server)
    sent = {"name": "build-1", "driver": "gvisor", "environments": ["shop/main"], "expires_in": "10m"}
    assert server.requests[0].json() == sent and "hlmr_we_new" in done.out and "shop/main" in done.out
    assert again.code == 4 and "make another one" in again.err and "all" in again.out
    assert "makes itself a new credential" in renewed.out


async def test_a_host_is_enrolled_with_a_token_from_standard_input_and_no_api_key(helmr: Helmr, tmp_path: Path) -> None:
    refused = problem("enrolment_refused", 403, hint="Make another one.")
    async with scripted([Reply({"worker_id": HOLD, "name": "build-1"}), refused]) as server:
        arguments = ("--url", server.url, "--state", str(tmp_path / "worker"))
        done = await helmr("worker", "enrol", "hlmr_we_x", *arguments, "--json")
        used = await helmr("worker", "enrol", "hlmr_we_x", *arguments)
    assert done.json == {"worker_id": HOLD, "name": "build-1"} and (tmp_path / "worker" / "enrolment.json").exists()
    assert server.requests[0].json()["token"] == "hlmr_we_x" and used.code == 1 and "enrolment_refused" in used.err
    lost = await helmr("worker", "enrol", "hlmr_we_x", "--state", str(tmp_path))
    assert lost.code == 2 and "--url" in lost.err


async def test_tokens_are_listed_with_what_became_of_them_and_revoked(helmr: Helmr) -> None:
    made = {"id": HOLD, "status": "open", "created_at": TIME, "expires_at": TIME, "created_by": {"kind": "user", "id": HOLD}}
    used = made | {"status": "used", "worker_id": COMPUTER, "name": "build-1"}
    answers = [Reply({"items": [used, made], "next_cursor": None}), Reply(made | {"status": "ended"}), Reply(used)]
    async with scripted(answers) as server:
        listed = await helmr("worker", "tokens", server=server)
        ended = await helmr("worker", "revoke-token", HOLD, server=server)
        late = await helmr("worker", "revoke-token", HOLD, server=server)
    assert [line.split("\t")[1:4] for line in listed.out.splitlines()] == [["used", "build-1", COMPUTER], ["open", "-", "-"]]
    assert f"{HOLD} is ended." in ended.out and f"the worker {COMPUTER} came of it" in late.out
    assert server.requests[1].path == f"/v1/workers/enrolments/{HOLD}/revoke"
