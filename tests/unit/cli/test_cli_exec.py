"""`helmr computer exec` and `logs`: a program's streams and exit code pass through, and steer nothing. SPEC 13, [C8]."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.cli.cli_terminal import at_terminal
from tests.unit.cli.test_cli_hostile import HOSTILE, SEEN, harmless
from tests.unit.client.api_samples import COMPUTER, TIME
from tests.unit.client.scripted_http import Reply, Request, problem, scripted

pytestmark = pytest.mark.anyio

COMMAND = "01980000-0000-7000-8000-00000000000c"
RECEIPT = {"id": COMMAND, "computer_id": COMPUTER}


def ran(status: str = "exited", **changes: Any) -> dict[str, Any]:
    whole = {"id": COMMAND, "computer_id": COMPUTER, "status": status, "argv": ["x"], "timeout": "9s", "created_at": TIME}
    return whole | {"stdout_bytes": 0, "stderr_bytes": 0} | changes


def page(*pieces: tuple[str, bytes], lost: int = 0, complete: bool = True) -> dict[str, Any]:
    items = [
        {"sequence": number, "stream": stream, "at": 0, "lost": lost, "data": base64.b64encode(data).decode()}
        for number, (stream, data) in enumerate(pieces, 1)
    ]
    return {"items": items, "next": len(items), "complete": complete}


def answers(command: dict[str, Any], logs: dict[str, Any]) -> Any:
    def answer(request: Request) -> Reply:
        if request.method == "POST":
            return Reply(RECEIPT, status=201)
        return Reply(logs if request.path.endswith("/logs") else command)

    return answer


@pytest.mark.parametrize(
    ("found", "code", "told"),
    [
        (ran(exit_code=0), 0, ""),
        (ran(exit_code=7), 7, ""),
        (ran(exit_code=137, signal=9), 137, ""),
        (ran("cancelled"), 143, "cancelled"),
        (ran("timed_out"), 124, "its time of 9s was over"),
        (ran("system_failed", error={"code": "process_lost", "message": "The host is gone."}), 1, "The host is gone."),
        (ran("system_failed"), 1, "it was lost"),
    ],
)
async def test_the_exit_code_is_the_programs_or_says_why_there_is_none(helmr: Helmr, found: dict[str, Any], code: int, told: str) -> None:
    """[C8]: each outcome, for people and as JSON."""
    async with scripted(answers(found, page())) as server:
        plain = await helmr("computer", "exec", COMPUTER, "--", "x", "-l", "--flag", server=server)
        as_json = await helmr("computer", "exec", COMPUTER, "--json", "--", "x", server=server)
    assert (plain.code, plain.out) == (code, "") and told in plain.err
    assert as_json.code == code and as_json.json == found
    assert server.requests[0].json() == {"argv": ["x", "-l", "--flag"]}


async def test_what_is_asked_is_sent_and_the_id_is_printed_when_nobody_waits(helmr: Helmr) -> None:
    options = ["--cwd", "/tmp", "--env", "A=b=c", "--env", "E=", "--timeout", "90s", "--detach", "--idempotency-key", "i", "--stdin"]
    async with scripted(answers(ran(), page())) as server:
        plain = await helmr("computer", "exec", *options, COMPUTER, "--", "cat", server=server, stdin=b"\xff\0in")
        as_json = await helmr("computer", "exec", "--detach", "--json", COMPUTER, "cat", server=server)
        wrong = await helmr("computer", "exec", "--env", "novalue", COMPUTER, "cat", server=server)
    assert (plain.code, plain.out) == (0, COMMAND + "\n") and as_json.json == RECEIPT
    assert wrong.code == 2 and "NAME=VALUE" in wrong.err
    sent = server.requests[0]
    assert sent.path == f"/v1/computers/{COMPUTER}/commands" and sent.headers["idempotency-key"] == "i"
    stdin = base64.b64encode(b"\xff\0in").decode()
    assert sent.json() == {"argv": ["cat"], "cwd": "/tmp", "env": {"A": "b=c", "E": ""}, "stdin": stdin, "timeout": "90000ms"}


async def test_bytes_come_exactly_into_a_file_while_errors_stay_on_the_terminal(tmp_path: Path) -> None:
    """What no text is passes too; a gap is told beside the output."""
    data, file = bytes(range(256)) * 3, tmp_path / "out"
    pieces = page(("stdout", data), ("stderr", b"bad\x1b[2J\n"), lost=5)
    with file.open("wb") as out:
        async with (
            scripted(answers(ran(exit_code=3), pieces)) as server,
            at_terminal(tmp_path, server.url, "computer", "exec", COMPUTER, "x", stdout=out.fileno()) as terminal,
        ):
            assert await terminal.exit_code() == 3
            await terminal.ended.wait()
    assert file.read_bytes() == data
    assert "bad\\x1b[2J" in terminal.seen and "[5 bytes of stdout are missing]" in terminal.seen


async def test_output_on_a_pipe_is_the_programs_bytes(helmr: Helmr) -> None:
    async with scripted(answers(ran(exit_code=0), page(("stdout", b"out\r\n"), ("stderr", b"\x1b[31merr\n"), lost=5))) as server:
        done = await helmr("computer", "exec", COMPUTER, "x", server=server)
    assert done.out == "out\r\n" and "\x1b[31merr" in done.err and "[5 bytes of stdout are missing]" in done.err


async def test_a_programs_output_steers_no_terminal_even_when_cut_within_a_character(tmp_path: Path) -> None:
    """SPEC 13: whatever a hostile program writes is seen, and obeyed by nobody."""
    whole = HOSTILE.encode() + "grün".encode() + b"\xff\n"
    cut = whole.index("ü".encode()) + 1
    pieces = page(("stdout", whole[:cut]), ("stdout", whole[cut:]), ("stderr", HOSTILE.encode() + b"\n"))
    async with (
        scripted(answers(ran(exit_code=0), pieces)) as server,
        at_terminal(tmp_path, server.url, "computer", "exec", COMPUTER, "x") as terminal,
    ):
        assert await terminal.exit_code() == 0
        await terminal.ended.wait()
    assert harmless(terminal.seen) and SEEN in terminal.seen and "grün\ufffd" in terminal.seen


async def test_logs_follow_until_the_end_or_show_what_there_is(helmr: Helmr) -> None:
    pages = [page(("stdout", b"one"), complete=False), {**page(("stdout", b"two")), "next": 9}]
    async with scripted([Reply(each) for each in pages]) as server:
        followed = await helmr("computer", "logs", COMMAND, "--follow", "--after", "4", server=server)
    assert (followed.code, followed.out) == (0, "onetwo")
    assert [request.query for request in server.requests] == ["wait=30000ms&after=4", "wait=30000ms&after=1"]
    async with scripted([Reply({"items": [], "next": 0, "complete": False}), problem("command_not_found", 404)]) as server:
        now = await helmr("computer", "logs", COMMAND, server=server)
        unknown = await helmr("computer", "logs", COMMAND, server=server)
        both = await helmr("computer", "logs", COMMAND, "--json", "--follow", server=server)
    assert (now.code, now.out) == (0, "") and unknown.code == 3 and both.code == 2
