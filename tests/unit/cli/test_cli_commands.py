"""What commands send and print. SPEC 13."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.cli_runs import Helmr
from tests.unit.cli.cli_terminal import at_terminal
from tests.unit.client.api_samples import (
    CONTROL,
    DEPLOYMENT,
    END,
    HOLD,
    SESSION,
    TIME,
    TURN,
    completed,
    created,
    event,
    session,
    sse_event,
    turn,
)
from tests.unit.client.scripted_http import Reply, Request, Scripted, scripted, sse

from helmr.cli.main import agent, deployment, root
from helmr.cli.main import session as session_group
from helmr.cli.main import turn as turn_group
from helmr.cli.terminal import escaped

pytestmark = pytest.mark.anyio

HI = [{"type": "text", "text": "hi"}]


@pytest.mark.ud("UD-103")
async def test_create_prints_the_ids_for_people_and_one_object_for_programs(helmr_process: Helmr) -> None:
    async with scripted([Reply(created()), Reply(created())]) as server:
        plain = await helmr_process("session", "create", "reviewer", "--text", "hi", "--label", "team=a", "--key", "k", server=server)
        done = await helmr_process("session", "create", "reviewer", "--text", "hi", "--idempotency-key", "mine", "--json", server=server)
    assert plain.code == done.code == 0
    assert plain.out == f"session  {SESSION}\nturn     {TURN}\n"
    assert done.json == created()
    assert server.requests[0].json() == {"agent": "reviewer", "key": "k", "labels": {"team": "a"}, "input": HI}
    assert server.requests[1].headers["idempotency-key"] == "mine"
    assert server.requests[0].headers["authorization"] == "Bearer hlmr_sk_test"


async def test_create_without_input_makes_no_turn(helmr: Helmr) -> None:
    async with scripted([Reply(created(False))]) as server:
        done = await helmr("session", "create", "reviewer", "--json", server=server)
    assert done.json["turn"] is None and "input" not in server.requests[0].json()


@pytest.mark.parametrize("value", ['{"issue": 9007199254740993}', '"bare"', "null", "[]"])
async def test_json_input_is_sent_as_it_is(helmr: Helmr, value: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(value)
    ways = [("--input-json", value), ("--input-file", "in.json"), ("--input-file", "-")]
    async with scripted([Reply(created())] * 3) as server:
        for way in ways:
            assert (await helmr("session", "create", "fixer", *way, server=server, stdin=value.encode())).code == 0
    assert [request.json()["input"] for request in server.requests] == [json.loads(value)] * 3


def timeline(ending: str = "turn.completed") -> Reply:
    noise = sse_event(2, "turn.queued", {"sequence": 1})
    other = b"id: 5\ndata: " + json.dumps(event(5, "turn.output", [{"type": "text", "text": "another Turn's"}], HOLD)).encode() + b"\n\n"
    text_ = sse_event(3, "turn.output", [{"type": "text", "text": "par"}])
    more = sse_event(4, "turn.output", [{"type": "text", "text": "tial"}, {"type": "json", "value": {"a": [1, "ü"]}}])
    return sse(sse_event(1, "computer.assigned", {}) + noise + text_ + more + other + sse_event(6, ending, {}), hold=True)


async def test_follow_streams_the_text_exactly_and_ends_with_the_turn(helmr_process: Helmr) -> None:
    answer = completed({"ok": True}, response=[{"type": "text", "text": "All good."}])
    async with scripted([Reply(created()), timeline(), Reply(answer)]) as server:
        done = await helmr_process("session", "create", "reviewer", "--text", "hi", "--follow", server=server)
    assert done.code == 0
    assert done.out == 'partial\n{"a":[1,"ü"]}\nAll good.\n'
    assert SESSION in done.err and "Turn 1 completed." in done.err


async def test_follow_exits_5_when_the_turn_failed_and_names_the_error(helmr: Helmr) -> None:
    failed = turn("failed", error={"code": "handler_failed", "message": "boom"})
    async with scripted([Reply(created()), timeline("turn.failed"), Reply(failed)]) as server:
        done = await helmr("session", "create", "reviewer", "--text", "hi", "--follow", server=server)
    assert done.code == 5 and "Turn 1 failed: handler_failed: boom." in done.err


async def test_follow_with_json_prints_the_settled_turn_alone_and_with_jsonl_each_event(helmr: Helmr) -> None:
    replies = [Reply(created()), timeline(), Reply(completed(1))] * 2
    async with scripted(replies) as server:
        done = await helmr("session", "create", "reviewer", "--text", "hi", "--follow", "--json", server=server)
        lines = await helmr("session", "create", "reviewer", "--text", "hi", "--follow", "--jsonl", server=server)
    assert done.json["status"] == "completed" and done.json["result"] == 1
    assert [json.loads(line)["sequence"] for line in lines.out.splitlines()] == [1, 2, 3, 4, 6]


async def test_follow_that_times_out_exits_124(helmr: Helmr) -> None:
    async with scripted([Reply(created()), sse(sse_event(1), hold=True)]) as server:
        done = await helmr("session", "create", "reviewer", "--text", "hi", "--follow", "--timeout", "300ms", server=server)
    assert done.code == 124 and f"helmr session watch {SESSION}" in done.err
    assert all("cancel" not in request.target for request in server.requests)


async def test_ctrl_c_leaves_the_turn_going_and_says_how_to_watch_it(tmp_path: Path) -> None:
    async with scripted([Reply(created()), sse(sse_event(1), hold=True)]) as server:
        environ = os.environ | {"HOME": str(tmp_path), "HELMR_API_URL": server.url, "HELMR_API_KEY": "key"}
        command = [sys.executable, "-m", "helmr.cli", "session", "create", "reviewer", "--text", "hi", "--follow"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == "1 é\n".encode()
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
    assert process.returncode == 130
    assert f"The Turn goes on: helmr session watch {SESSION}" in err.decode() and "Traceback" not in err.decode()
    assert [request.method for request in server.requests] == ["POST", "GET"]


async def test_a_list_of_events_shows_what_was_written(helmr: Helmr) -> None:
    records = [event(1), event(2, "turn.output", [{"type": "json", "value": {"a": 1}}]), event(3, "turn.failed", {"code": "x"})]
    page = {"records": records, "next_after": 3, "has_more": False, "retained_after": 0, "sealed": False}
    async with scripted([Reply(page)]) as server:
        done = await helmr("session", "events", SESSION, server=server)
    assert done.out.splitlines() == [
        f'{TIME}  [1] turn.output "1 é\\n"',
        f'{TIME}  [2] turn.output [{{"type": "json", "value": {{"a": 1}}}}]',
        f"{TIME}  [3] turn.failed (code: x)",
    ]


async def test_watch_takes_the_running_turn_else_the_next_else_the_last(helmr: Helmr) -> None:
    other = "01900000-0000-7000-8000-0000000000ff"
    page = {"items": [completed(1, id=other), turn("running"), turn("queued", id=other)], "next_cursor": None}
    async with scripted([Reply(page), timeline(), Reply(completed())]) as server:
        done = await helmr("session", "watch", SESSION, server=server)
    assert done.code == 0 and done.out == 'partial\n{"a":[1,"ü"]}\n'
    assert server.requests[2].path.endswith(TURN)


async def test_events_lists_all_pages_follows_and_prints_lines(helmr: Helmr) -> None:
    pages = [
        {"records": [event(1), event(2)], "next_after": 2, "has_more": True, "retained_after": 0, "sealed": False},
        {
            "records": [event(3, "session.closed", {"reason": "close"})],
            "next_after": 3,
            "has_more": False,
            "retained_after": 0,
            "sealed": True,
        },
    ]
    async with scripted([*map(Reply, pages), Reply(pages[0]), sse(sse_event(1) + sse_event(2) + END)]) as server:
        plain = await helmr("session", "events", SESSION, server=server)
        one = await helmr("session", "events", SESSION, "--limit", "2", "--json", server=server)
        live = await helmr("session", "events", SESSION, "--follow", "--jsonl", server=server)
    assert len(plain.out.splitlines()) == 3 and "session.closed (reason: close)" in plain.out
    assert one.json == pages[0]
    assert [json.loads(line)["sequence"] for line in live.out.splitlines()] == [1, 2]
    assert [request.query for request in server.requests] == ["after=0&limit=1000", "after=2&limit=1000", "after=0&limit=2", "after=0"]


async def test_enqueue_again_takes_the_input_of_a_turn(helmr: Helmr) -> None:
    """[S24]: a new Turn, never a replay."""
    receipt = {"id": HOLD, "session_id": SESSION, "sequence": 2}
    async with scripted([Reply(turn("failed", input=HI)), Reply(receipt)]) as server:
        done = await helmr("session", "enqueue", SESSION, "--again", TURN, "--json", server=server)
    assert done.json == receipt and server.requests[1].json() == {"input": HI}


async def test_every_control_prints_its_receipt(helmr: Helmr) -> None:
    """UD-103: a receipt carries an id."""
    control = {"id": CONTROL, "session_id": SESSION, "status": "accepted"}
    at = f"/v1/sessions/{SESSION}"
    answers: dict[str, Any] = {
        f"{at}/interrupt": control | {"hold_id": HOLD},
        f"{at}/resume": control | {"hold_id": HOLD},
        f"{at}/close": {"session_id": SESSION, "status": "closing"},
        f"{at}/cancel": {"session_id": SESSION, "status": "closed"},
        f"{at}/data": {"session_id": SESSION, "payload_expired_at": TIME},
        f"{at}/turns/{TURN}/interrupt": control | {"turn_id": TURN},
        f"{at}/turns/{TURN}/messages": {"id": HOLD, "status": "accepted"},
    }
    async with scripted(lambda request: Reply(answers[request.path])) as server:
        for path, *arguments in (
            (f"{at}/interrupt", "interrupt", SESSION),
            (f"{at}/resume", "resume", SESSION, "--hold", HOLD),
            (f"{at}/close", "close", SESSION),
            (f"{at}/cancel", "cancel", SESSION),
            (f"{at}/data", "delete-data", SESSION, "--yes"),
            (f"{at}/turns/{TURN}/interrupt", "turn", "interrupt", SESSION, TURN),
            (f"{at}/turns/{TURN}/messages", "turn", "send", SESSION, TURN, "--text", "hi"),
        ):
            done = await helmr("session", *arguments, "--json", server=server)
            assert done.json == answers[path]
    assert server.requests[-1].json() == {"content": HI}
    assert server.requests[1].json() == {"hold_id": HOLD}


async def test_data_is_deleted_only_after_a_yes(helmr: Helmr, tmp_path: Path) -> None:
    """[S22]: asked at a terminal; without one `--yes` must be there, and nothing is sent before."""
    receipt = {"session_id": SESSION, "payload_expired_at": TIME}
    async with scripted(lambda request: Reply(receipt)) as server:
        assert (await helmr("session", "delete-data", SESSION, server=server, stdin=b"y\n")).code == 2
        async with at_terminal(tmp_path, server.url, "session", "delete-data", SESSION) as person:
            await person.until("for good?")
            person.type("n\n")
            assert await person.exit_code() == 1
            await person.until("Nothing was deleted.")
        assert server.requests == []
        async with at_terminal(tmp_path, server.url, "session", "delete-data", SESSION) as person:
            await person.until("for good?")
            person.type("y\n")
            assert await person.exit_code() == 0
            await person.until(TIME)
    assert [(request.method, request.path) for request in server.requests] == [("DELETE", f"/v1/sessions/{SESSION}/data")]


async def test_readings_print_one_object_and_a_plain_form(helmr: Helmr) -> None:
    hold = {"id": HOLD, "session_id": SESSION, "kind": "interrupt", "created_at": TIME, "can_release": True}
    agent_ = {"agent": "reviewer", "template": "repo", "deployment_id": DEPLOYMENT, "input_kind": "text", "runtime_mcp": {"allow": []}}
    trigger_ = {"agent": "reviewer", "trigger": "nightly", "deployment_id": DEPLOYMENT, "schedule": "0 1 * * *", "timezone": "UTC"}
    trigger_ |= {"active_since": TIME, "missed": 3, "next_fires": [TIME, TIME]}
    fired = {"planned_at": TIME, "status": "fired", "missed": 0, "recorded_at": TIME, "fired_at": TIME, "session_id": SESSION}
    deployed = {"id": DEPLOYMENT, "status": "deployed", "current": True, "digest": "d", "created_at": TIME, "agents": ["reviewer"]}
    deployed["images"] = {"python:3.12-slim": "sha256:" + "0" * 64}
    changes = {"added": ["a"], "removed": [], "changed": ["b"], "left_out": 0}
    answers: dict[str, Any] = {
        f"/v1/sessions/{SESSION}": session(holds=[hold]),
        "/v1/sessions": {"items": [session()], "next_cursor": "more"},
        f"/v1/sessions/{SESSION}/turns": {"items": [turn()], "next_cursor": None},
        f"/v1/sessions/{SESSION}/turns/{TURN}": completed("x"),
        f"/v1/sessions/{SESSION}/explain": {"session_id": SESSION, "state": "held", "sentence": "It is held.", "facts": {}},
        "/v1/agents": {"deployment_id": DEPLOYMENT, "items": [agent_], "next_cursor": None},
        "/v1/agents/reviewer": agent_,
        "/v1/triggers": {"items": [trigger_], "next_cursor": None},
        "/v1/triggers/reviewer/nightly": trigger_ | {"last_firing": fired},
        "/v1/deployments": {"items": [deployed], "next_cursor": None},
        "/v1/deployments/current": deployed,
        f"/v1/deployments/{DEPLOYMENT}": deployed,
        f"/v1/deployments/{DEPLOYMENT}/promote": deployed,
        f"/v1/deployments/{DEPLOYMENT}/diff": {"deployment_id": DEPLOYMENT, "since": DEPLOYMENT, "files": changes}
        | dict.fromkeys(("agents", "policies", "triggers", "templates"), changes),
    }
    table = [
        (("session", "get", SESSION), f"/v1/sessions/{SESSION}", f"helmr session resume {SESSION} --hold {HOLD}"),
        (("session", "list"), "/v1/sessions", f"{SESSION}\topen\treviewer"),
        (("session", "turn", "list", SESSION), f"/v1/sessions/{SESSION}/turns", f"1\t{TURN}\trunning"),
        (("session", "turn", "get", SESSION, TURN), f"/v1/sessions/{SESSION}/turns/{TURN}", '"x"'),
        (("session", "why", SESSION), f"/v1/sessions/{SESSION}/explain", "It is held.\n"),
        (("agent", "list"), "/v1/agents", "reviewer\ttext\trepo"),
        (("trigger", "list"), "/v1/triggers", f"reviewer\tnightly\t0 1 * * *\tUTC\t{TIME}"),
        (("trigger", "get", "reviewer", "nightly"), "/v1/triggers/reviewer/nightly", f"{TIME} fired"),
        (("agent", "get", "reviewer"), "/v1/agents/reviewer", '{"allow": []}'),
        (("deployment", "list"), "/v1/deployments", f"{DEPLOYMENT}\tdeployed\tcurrent\t1"),
        (("deployment", "get"), "/v1/deployments/current", "reviewer"),
        (("deployment", "diff", DEPLOYMENT, DEPLOYMENT), f"/v1/deployments/{DEPLOYMENT}/diff", "+ agents  a\n~ agents  b\n+ policies  a"),
        (("deployment", "promote", DEPLOYMENT), f"/v1/deployments/{DEPLOYMENT}/promote", "deployed, current"),
    ]
    async with scripted(lambda request: Reply(answers[request.path])) as server:
        for arguments, path, plain in table:
            assert (await helmr(*arguments, "--json", server=server)).json == answers[path]
            done = await helmr(*arguments, server=server)
            assert done.code == 0 and plain in done.out, done


@pytest.mark.parametrize("status", ["deployed", "failed"])
async def test_deploy_uploads_what_is_missing_shows_the_build_and_says_how_it_ended(helmr: Helmr, status: str) -> None:
    """[D2]."""
    started = {"id": DEPLOYMENT, "status": "building", "current": False, "digest": "d", "created_at": TIME}
    ended = started | {"status": status} | ({"error": {"code": "image_failed", "message": "pip said no"}} if status == "failed" else {})
    uploaded: list[str] = []

    def answer(request: Request) -> Reply:
        if request.method == "PUT":
            uploaded.append(request.path)
            return Reply(status=201)
        if request.path == "/v1/blobs/missing":
            return Reply({"missing": request.json()["digests"]})
        if request.path.endswith("/events"):
            return sse(b"data: step 1\ndata: \n\n" + END)
        return Reply(started if request.method == "POST" else ended)

    hello = Path(__file__).parents[3] / "examples" / "hello"
    async with scripted(answer) as server:
        done = await helmr("deploy", str(hello), "--no-promote", server=server)
    published = next(request.json() for request in server.requests if request.path == "/v1/deployments")
    assert uploaded and published["promote"] is False and published["manifest"]["agents"]
    assert "step 1\n" in done.err
    assert done.code == (0 if status == "deployed" else 1)
    assert ("deployed" in done.out) if status == "deployed" else ("pip said no (image_failed)" in done.err)


async def test_login_saves_a_key_that_the_server_took_and_logout_forgets_it(helmr: Helmr, tmp_path: Path) -> None:
    page = Reply({"items": [], "next_cursor": None})
    capabilities = Reply({"version": "1.2", "api": "v1", "features": [], "limits": {}})
    async with scripted([page, capabilities, page]) as server:
        saved = await helmr("login", server.url, "--api-key-stdin", "--json", stdin=b"hlmr_sk_0123456789\n")
        known = await helmr("whoami", "--json")
    assert saved.code == 0 and saved.json["url"] == server.url
    assert known.json == {"url": server.url, "configured_by": "login", "api_key": "hlmr_sk_0123...", "server": "1.2"}
    assert (await helmr("logout", "--json")).json == {"removed": True}
    assert not (tmp_path / ".config/helmr/login.json").exists()


async def test_a_running_dev_is_found_in_another_shell(helmr_process: Helmr, tmp_path: Path) -> None:
    from helmr.client.configuration import save

    async with scripted([Reply(session())]) as server:
        save(tmp_path / ".local/state/helmr/dev.json", server.url, "dev-key")
        assert (await helmr_process("session", "get", SESSION, "--json")).json["id"] == SESSION
    assert server.requests[0].headers["authorization"] == "Bearer dev-key"


async def test_init_writes_a_project_and_overwrites_nothing(helmr: Helmr, tmp_path: Path) -> None:
    done = await helmr("init", "project", "--json")
    assert done.code == 0 and "pyproject.toml" in done.json["files"] and (tmp_path / "project/pyproject.toml").exists()
    assert (await helmr("init", "project", "--json")).code == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_completion_prints_a_script(helmr: Helmr, shell: str) -> None:
    done = await helmr("completion", shell)
    assert done.code == 0 and "_HELMR_COMPLETE" in done.out


async def test_completion_completes_commands(helmr_process: Helmr) -> None:
    done = await helmr_process(COMP_WORDS="helmr session cr", COMP_CWORD="2", _HELMR_COMPLETE="bash_complete")
    assert done.out == "plain,create\n"


def test_escaping_shows_what_could_steer_a_terminal() -> None:
    hostile = "\x1b]0;title\x07\x1b[2J a\rb\x00\x7f\x9b31m \u202eevil\u2066 \u200f ok\ttab\nline é🙂"
    shown = escaped(hostile)
    assert shown == "\\x1b]0;title\\x07\\x1b[2J a\\x0db\\x00\\x7f\\x9b31m \\u202eevil\\u2066 \\u200f ok\ttab\nline é🙂"


async def on_terminal(server: Scripted, home: Path, *arguments: str) -> str:
    """What a person sees: standard output and error of the command on one pseudo-terminal."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"HOME": str(home), "HELMR_API_URL": server.url, "HELMR_API_KEY": "key"}
    command = [sys.executable, "-m", "helmr.cli", *arguments]
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)

    def read() -> bytes:
        seen = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                return seen
            if not piece:
                return seen
            seen += piece

    async with asyncio.timeout(30):
        seen = await asyncio.to_thread(read)
        await process.wait()
    os.close(ours)
    return seen.decode()


async def test_agent_text_is_escaped_on_a_terminal_and_exact_on_a_pipe(helmr: Helmr, tmp_path: Path) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07 \u202eevil"
    body = sse_event(1, "turn.output", [{"type": "text", "text": hostile}]) + sse_event(2, "turn.failed", {})
    failed = turn("failed", error={"code": "handler_failed", "message": hostile})
    replies = [Reply({"items": [turn()], "next_cursor": None}), sse(body, hold=True), Reply(failed)]
    async with scripted(replies * 2) as server:
        seen = await on_terminal(server, tmp_path, "session", "watch", SESSION)
        piped = await helmr("session", "watch", SESSION, server=server)
    assert "\x1b]" not in seen and "\x1b[2J" not in seen and "\u202e" not in seen and "\x07" not in seen
    assert "\\x1b[2J\\x1b]0;owned\\x07 \\u202eevil" in seen
    assert piped.out.startswith(hostile)


async def test_json_on_a_terminal_is_ascii(tmp_path: Path) -> None:
    async with scripted([Reply(session(key="\u202e\x9b"))]) as server:
        seen = await on_terminal(server, tmp_path, "session", "get", SESSION, "--json")
    assert json.loads(seen)["key"] == "\u202e\x9b" and seen.isascii()


async def test_tables_are_aligned_with_a_header_on_a_terminal(tmp_path: Path) -> None:
    async with scripted([Reply({"items": [session(agent="\x1b[31mred")], "next_cursor": None})]) as server:
        seen = await on_terminal(server, tmp_path, "session", "list")
    assert "AGENT" in seen and "\\x1b[31mred" in seen


async def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path) -> None:
    records = [event(number) for number in range(1, 3000)]
    page = {"records": records, "next_after": 2999, "has_more": True, "retained_after": 0, "sealed": False}

    def answer(_: Request) -> Reply:
        return Reply(page)

    async with scripted(answer) as server:
        command = f'"{sys.executable}" -m helmr.cli session events {SESSION} --jsonl | head -n 1; exit ${{PIPESTATUS[0]}}'
        environ = os.environ | {"HOME": str(tmp_path), "HELMR_API_URL": server.url, "HELMR_API_KEY": "key"}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("bash", "-c", command, env=environ, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(30):
            out, err = await process.communicate()
    assert process.returncode == 141 and err == b"" and json.loads(out)["sequence"] == 1


def test_every_command_has_its_module_and_the_help_of_its_group() -> None:
    import click

    for group in (root, session_group, turn_group, agent, deployment):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None and command.name in (name, f"{name}_") and command.help


async def test_deploying_a_broken_project_tells_all_of_it_asks_nothing_and_ends_with_1(helmr_process: Helmr, tmp_path: Path) -> None:
    head = 'from helmr import agent, image, template\nbox = template(id="box", image=image("box").from_host())\n'
    line = 'a = agent(id="fine", template=box, turn=lambda turn, ctx: None)\n'
    for name, text in {"pyproject.toml": "", "agents/a.py": head + line, "agents/b.py": f"{head}\n{line}"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    async with scripted([]) as server:
        plain = await helmr_process("deploy", str(tmp_path), server=server)
        done = await helmr_process("deploy", str(tmp_path), "--json", server=server)
    assert (plain.code, done.code, server.requests) == (1, 1, [])
    assert "agents/b.py:4: The agent id 'fine' is already defined in agents/a.py:3. Give one another id." in plain.err


async def test_a_failed_deployment_is_shown_with_its_error_and_the_end_of_its_log(helmr: Helmr) -> None:
    failed = {"id": DEPLOYMENT, "status": "failed", "current": False, "digest": "d", "created_at": TIME}
    failed["error"] = {"code": "image_failed", "message": "pip said no"}
    log = b"".join(b"data: step %d\n" % number for number in range(100)) + b"data: \n\n"

    def answer(request: Request) -> Reply:
        return sse(log + END) if request.path.endswith("/events") else Reply(failed)

    async with scripted(answer) as server:
        done = await helmr("deployment", "get", DEPLOYMENT, server=server)
        assert (await helmr("deployment", "get", DEPLOYMENT, "--json", server=server)).json["error"]["message"] == "pip said no"
    assert done.code == 0 and "image_failed: pip said no" in done.out
    assert "step 60\n" in done.err and "step 99" in done.err and "step 59\n" not in done.err


async def test_deploy_shows_how_far_the_upload_is_on_a_terminal_alone(helmr: Helmr, tmp_path: Path) -> None:
    hello = Path(__file__).parents[3] / "examples" / "hello"
    deployed = {"id": DEPLOYMENT, "status": "deployed", "current": True, "digest": "d", "created_at": TIME}

    def answer(request: Request) -> Reply:
        if request.method == "PUT":
            return Reply(status=201)
        if request.path == "/v1/blobs/missing":
            return Reply({"missing": request.json()["digests"]})
        return sse(END) if request.path.endswith("/events") else Reply(deployed)

    async with scripted(answer) as server:
        async with at_terminal(tmp_path, server.url, "deploy", str(hello)) as person:
            assert await person.exit_code() == 0
            await person.until(DEPLOYMENT)
        piped = await helmr("deploy", str(hello), server=server)
    assert "uploading [....." in person.seen and "] 1/" in person.seen
    last = person.seen.index("uploaded ")
    assert person.seen.rindex("uploading [") < person.seen.rindex("\x1b[K", 0, last) < last
    assert piped.code == 0 and "uploaded" in piped.err and "uploading" not in piped.err
