"""Failures of the command line: exit codes, and an error object with code and hint. SPEC 13, UD-100, UD-103."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.client.api_samples import HOLD, SESSION, TURN, completed, turn
from tests.unit.client.scripted_http import Reply, problem, scripted

pytestmark = pytest.mark.anyio

REFUSED = [
    (problem("forbidden", 403, detail="No.", hint="Ask."), 1, "forbidden"),
    (problem("unauthenticated", 401), 1, "unauthenticated"),
    (problem("session_not_open", 409), 1, "session_not_open"),
    (problem("hold_not_releasable", 409), 1, "hold_not_releasable"),
    (problem("content_limit_exceeded", 413), 1, "content_limit_exceeded"),
    (problem("invalid_value", 422), 1, "invalid_value"),
    (problem("cursor_expired", 410), 1, "cursor_expired"),
    (problem("session_not_found", 404), 3, "session_not_found"),
    (problem("hold_not_found", 404), 3, "hold_not_found"),
    (problem("from_the_future", 404), 3, "from_the_future"),
    (problem("admission_unavailable", 429, headers={"Retry-After": "900"}, retryable=True), 4, "admission_unavailable"),
    (problem("database_unavailable", 503, headers={"Retry-After": "900"}), 4, "database_unavailable"),
    (Reply(b"<html>", status=503, headers={"Content-Type": "text/html", "Retry-After": "900"}), 4, "conflict"),
]


@pytest.mark.ud("UD-100")
@pytest.mark.parametrize(("reply", "code", "name"), REFUSED[:-1], ids=lambda value: str(value) if isinstance(value, str) else "")
async def test_each_refusal_has_its_exit_code_and_its_error_object(
    helmr: Helmr, helmr_process: Helmr, reply: Reply, code: int, name: str
) -> None:
    async with scripted(lambda _: reply) as server:
        plain = await helmr("session", "get", SESSION, server=server)
        as_json = await helmr_process("session", "get", SESSION, "--json", server=server)
    assert plain.code == as_json.code == code
    assert plain.out == "" and f"({name})" in plain.err and "Traceback" not in plain.err
    assert as_json.error["code"] == name and as_json.error["exit_code"] == code and as_json.error["request_id"] == "req-1"


async def test_the_hint_of_the_server_is_shown(helmr: Helmr) -> None:
    async with scripted([REFUSED[0][0]]) as server:
        done = await helmr("session", "close", SESSION, server=server)
    assert done.err == "error: No. (forbidden)\nhint: Ask.\nrequest: req-1\n"


@pytest.mark.ud("UD-100")
async def test_a_proxys_error_page_is_transient(helmr: Helmr) -> None:
    async with scripted([REFUSED[-1][0]]) as server:
        done = await helmr("session", "get", SESSION, "--json", server=server)
    assert done.code == 4 and done.error["retryable"] is True


@pytest.mark.ud("UD-100")
async def test_a_server_that_is_not_there_is_transient_and_says_so(helmr: Helmr) -> None:
    async with scripted([]) as server:
        pass
    done = await helmr("session", "get", SESSION, "--json", server=server)
    assert done.code == 4 and done.error["code"] == "connection_failed" and "helmr dev" in done.error["hint"]


USAGE = [
    ("session", "create"),
    ("session", "create", "a", "--text", "x", "--input-json", "1"),
    ("session", "create", "a", "--input-json", "{"),
    ("session", "create", "a", "--input-json", "NaN"),
    ("session", "create", "a", "--input-json", '{"a": 1, "a": 2}'),
    ("session", "create", "a", "--input-file", "missing.json"),
    ("session", "create", "a", "--label", "novalue"),
    ("session", "create", "a", "--follow"),
    ("session", "create", "a", "--text", "x", "--timeout", "5s"),
    ("session", "create", "a", "--text", "x", "--follow", "--timeout", "soon"),
    ("session", "enqueue", SESSION),
    ("session", "resume", SESSION),
    ("session", "list", "--key", "k"),
    ("session", "list", "--status", "gone"),
    ("session", "events", SESSION, "--follow", "--limit", "3"),
    ("session", "turn", "wait", SESSION, TURN, "--timeout", "0s"),
    ("session", "turn", "send", SESSION, TURN, "--input-json", '"text"'),
    ("session", "nonsense"),
    ("nonsense",),
    ("session", "get", SESSION, "--nonsense"),
    ("completion", "tcsh"),
    ("login", "http://x"),
]


@pytest.mark.ud("UD-100")
@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
async def test_each_wrong_command_line_is_usage_and_sends_nothing(helmr: Helmr, arguments: tuple[str, ...]) -> None:
    async with scripted([]) as server:
        done = await helmr(*arguments, server=server)
        assert server.requests == []
    assert done.code == 2 and done.out == "" and done.err.startswith("error: ") and "(usage)" in done.err
    assert "Traceback" not in done.err


@pytest.mark.ud("UD-100")
async def test_a_usage_error_is_an_object_too_with_json(helmr_process: Helmr) -> None:
    done = await helmr_process("session", "create", "a", "--input-json", "{", "--json", "--url", "http://127.0.0.1:9", "--api-key", "k")
    assert done.code == 2 and done.error["code"] == "usage" and "--help" in done.error["hint"]


async def test_nothing_configured_is_usage_with_what_to_do(helmr: Helmr) -> None:
    done = await helmr("session", "list", "--json")
    assert done.code == 2 and done.error["code"] == "not_configured" and "HELMR_API_URL" in done.error["hint"]


@pytest.mark.parametrize(("state", "code"), [("failed", 5), ("interrupted", 5), ("cancelled", 5), ("completed", 0)])
async def test_wait_says_by_its_exit_code_whether_the_turn_completed(helmr_process: Helmr, state: str, code: int) -> None:
    reply = completed({"n": 1}) if state == "completed" else turn(state, error={"code": "handler_failed", "message": "boom"})
    async with scripted([Reply(reply)] * 2) as server:
        done = await helmr_process("session", "turn", "wait", SESSION, TURN, "--json", server=server)
        plain = await helmr_process("session", "turn", "wait", SESSION, TURN, server=server)
    assert done.code == plain.code == code
    assert done.json["status"] == state and state in plain.out


async def test_a_wait_that_times_out_exits_124_and_cancels_nothing(helmr_process: Helmr) -> None:
    async with scripted(lambda _: Reply(hold=True, cut=0)) as server:
        done = await helmr_process("session", "turn", "wait", SESSION, TURN, "--timeout", "100ms", "--json", server=server)
    assert done.code == 124 and done.json == {"status": "timeout"}
    assert {request.method for request in server.requests} == {"GET"}


@pytest.mark.ud("UD-100")
async def test_nothing_prompts_without_a_terminal(helmr_process: Helmr) -> None:
    """The key is neither asked for nor taken from a pipe that wasn't named."""
    done = await helmr_process("login", "http://x", stdin=b"key\n")
    assert done.code == 2 and "--api-key-stdin" in done.err


async def test_the_request_id_and_facts_are_in_the_error_object(helmr: Helmr) -> None:
    async with scripted(lambda request: problem("session_key_conflict", 409, session_id=HOLD)) as server:
        done = await helmr("session", "create", "a", "--key", "k", "--json", server=server)
        shown = await helmr("session", "create", "a", "--key", "k", server=server)
    assert done.error["session_id"] == HOLD
    assert f"session_id: {HOLD}\n" in shown.err, "the hint says to go on there"


async def test_an_empty_id_and_a_file_in_the_way_are_no_tracebacks(helmr: Helmr, tmp_path: Path) -> None:
    async with scripted([Reply({"items": [], "next_cursor": None})]) as server:
        done = await helmr("session", "get", "", "--json", server=server)
        assert server.requests == [] and done.code == 1 and done.error["code"] == "invalid_request"
        (tmp_path / ".config").write_text("a file where a folder is wanted")
        done = await helmr("login", server.url, "--api-key-stdin", "--json", stdin=b"key\n")
    assert done.code == 1 and done.error["code"] == "system_error"


EXAMPLES = [
    (path.name, found.group(1))
    for path in sorted((Path(__file__).parents[3] / "docs").rglob("*.md"))
    for found in re.finditer(r"```(?:sh|bash)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    if "helmr " in found.group(1) and "[OPTIONS]" not in found.group(1)
]


@pytest.mark.ud("UD-103")
@pytest.mark.parametrize(
    ("reply", "code"), [(REFUSED[0][0], 1), (REFUSED[7][0], 3), (REFUSED[11][0], 4)], ids=["refused", "missing", "away"]
)
async def test_the_shell_examples_of_the_documentation_end_with_the_failure(tmp_path: Path, reply: Reply, code: int) -> None:
    """Whoever copies them takes no refusal for a delivery: the exit code is the command's, nothing is printed as if it were a receipt, and
    nothing more is asked of the server."""
    assert EXAMPLES, "the documentation has no example any more"
    (tmp_path / "helmr").write_text(f'#!/bin/sh\nexec {sys.executable} -m helmr.cli "$@"\n')
    (tmp_path / "helmr").chmod(0o755)
    for _, script in EXAMPLES:
        async with scripted(lambda _: reply) as server:
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELMR_", "XDG_"))}
            path = f"{tmp_path}:{os.environ['PATH']}"
            variables = kept | {
                "BUILD_ID": "7",
                "HOME": str(tmp_path),
                "PATH": path,
                "HELMR_API_URL": server.url,
                "HELMR_API_KEY": "hlmr_sk_test",
            }
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", script, env=variables, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
            async with asyncio.timeout(30):
                out, err = await process.communicate()
            assert (process.returncode, out) == (code, b""), err.decode()
            assert len({request.path for request in server.requests}) == 1
