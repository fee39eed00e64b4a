"""`helmr secret`: values that come from anywhere but the command line, and never go anywhere else. SPEC 13, [X1]."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.client.api_samples import COMPUTER, HOLD, TIME
from tests.unit.client.scripted_http import Reply, problem, scripted

pytestmark = pytest.mark.anyio

VALUE = "s3ntinel-value"
SECRET = {"id": HOLD, "name": "TOKEN", "version": 2, "created_at": TIME, "created_by": {"kind": "api_key", "id": HOLD}}


async def test_a_value_is_read_from_standard_input_without_its_line_end_or_from_a_file(helmr: Helmr, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_text(f"{VALUE}\r\n")
    async with scripted([Reply(SECRET, status=201)] * 4) as server:
        piped = await helmr("secret", "create", "TOKEN", "--idempotency-key", "i", server=server, stdin=f"{VALUE}\n".encode())
        await helmr("secret", "rotate", "TOKEN", "--file", str(file), server=server)
        exact = await helmr("secret", "rotate", "TOKEN", "--exact", "--json", server=server, stdin=f"{VALUE}\n".encode())
        binary = await helmr("secret", "create", "TOKEN", server=server, stdin=b"\xff")
    assert [request.json() for request in server.requests] == [{"name": "TOKEN", "value": VALUE}, {"value": VALUE}, {"value": f"{VALUE}\n"}]
    assert [request.path for request in server.requests] == ["/v1/secrets", "/v1/secrets/TOKEN/rotate", "/v1/secrets/TOKEN/rotate"]
    assert server.requests[0].headers["idempotency-key"] == "i"
    assert exact.json == SECRET and "TOKEN" in piped.out and binary.code == 2 and "UTF-8" in binary.err
    assert VALUE not in piped.out + piped.err + exact.out + exact.err


async def test_no_argument_takes_a_value(helmr: Helmr) -> None:
    """Other users of the machine may see arguments."""
    done = await helmr("secret", "create", "TOKEN", VALUE)
    assert done.code == 2


async def test_secrets_are_listed_and_shown_with_where_they_are(helmr: Helmr) -> None:
    page = {"items": [SECRET, SECRET | {"name": "OLD", "revoked_at": TIME}], "next_cursor": "more"}
    details = SECRET | {
        "versions": [],
        "templates": ["repo"],
        "computers": [{"computer_id": COMPUTER, "residency": "running", "version": 1}],
    }
    async with scripted([Reply(page), Reply(page), Reply(details)]) as server:
        plain = await helmr("secret", "list", server=server)
        done = await helmr("secret", "list", "--json", "--limit", "2", server=server)
        shown = await helmr("secret", "get", "TOKEN", server=server)
    rows = [line.split("\t") for line in plain.out.splitlines()]
    assert rows == [["TOKEN", "2", "in use", TIME, "-"], ["OLD", "2", "revoked", TIME, "-"]] and "--cursor more" in plain.err
    assert done.json == page and f"{COMPUTER} (version 1)" in shown.out and "repo" in shown.out


async def test_revoking_needs_a_yes(helmr: Helmr) -> None:
    async with scripted([Reply(SECRET | {"revoked_at": TIME}), problem("secret_not_found", 404)]) as server:
        unsure = await helmr("secret", "revoke", "TOKEN", server=server)
        done = await helmr("secret", "revoke", "TOKEN", "--yes", server=server)
        unknown = await helmr("secret", "revoke", "TOKEN", "--yes", server=server)
    assert unsure.code == 2 and "--yes" in unsure.err and "revoked" in done.out and unknown.code == 3
    assert [request.path for request in server.requests] == ["/v1/secrets/TOKEN/revoke"] * 2
