"""Turns of a real Session process below a real supervisor, over a real socket. [S9]-[S14], [E5], [E6]."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.guest.guest_host import Host

pytestmark = pytest.mark.anyio


async def test_init_runs_once_and_the_process_serves_turns_in_order(tmp_path: Path) -> None:
    """[S9] [S10] [A4]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(7, "echo")
        for n in range(3):
            host.turn(7, f"t{n}", [{"type": "text", "text": f"hello {n}"}])
            settled = await host.settled(7, f"t{n}")
            assert settled["status"] == "completed"
            assert settled["response"] == [{"type": "text", "text": "done"}]
            result = settled["result"]
            assert result["pid"] == result["init"]["pid"]
            assert result["sequence"] == host.sequences[7, next(i for i, f in enumerate(host.stored[7], 1) if f == settled) - 1]
        assert host.kinds(7) == ["init.done", *["turn.output", "turn.settled"] * 3]
        assert host.texts(7) == ["hello 0", "hello 1", "hello 2"]
        assert host.joined == [7]
        await host.until(lambda: "init runs" in logs(host), "the log")
        assert logs(host).count("init runs") == 1


async def test_a_turn_that_comes_again_starts_once(tmp_path: Path) -> None:
    """I5"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "echo")
        for _ in range(3):
            host.turn(1, "t", "x")
        await host.settled(1, "t")
        host.turn(1, "t", "x")
        host.turn(1, "u", "x")
        await host.settled(1, "u")
        assert host.kinds(1).count("turn.settled") == 2


async def test_outputs_keep_their_order_through_the_window(tmp_path: Path) -> None:
    """[A4] [E5]: more writes than the window holds"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "many")
        host.turn(1, "t", {"n": 300})
        assert (await host.settled(1, "t"))["result"] is True
        assert host.texts(1) == [str(n) for n in range(300)]


async def test_a_pipe_keeps_order_and_its_window(tmp_path: Path) -> None:
    """[A4]: 256 values in flight at most, 64 frames on the way"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.acknowledging = False
        host.start(1, "piper")
        host.turn(1, "t", {"n": 1000})
        await host.until(lambda: "taken 257" in logs(host), "257 values taken: 256 in flight and one in hand")
        await host.until(lambda: len(host.texts(1)) == 64, "a full window")
        assert "taken 258" not in logs(host)
        host.acknowledging = True
        host.say(1)
        assert (await host.settled(1, "t"))["result"] == 1000
        assert host.texts(1) == [str(n) for n in range(1000)]


@pytest.mark.parametrize(
    ("attribute", "input", "code", "part"),
    [
        ("raises", None, "handler_failed", "ValueError: no luck"),
        ("forgetful", None, "unjoined_operations", "output.write"),
        ("bad_result", "nan", "result_invalid", "finite"),
        ("bad_result", "large", "result_too_large", "262144"),
        ("typed", {"issue": "no number"}, "input_invalid", "issue"),
        ("typed", {"issue": 0}, "result_invalid", "ok"),
    ],
)
async def test_a_turn_fails_with_its_code(tmp_path: Path, attribute: str, input: object, code: str, part: str) -> None:
    """[S9] [S10]; the process stays healthy"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, attribute)
        host.turn(1, "t", input)
        settled = await host.settled(1, "t")
        assert settled["status"] == "failed"
        assert settled["error"]["code"] == code
        assert part in settled["error"]["message"]
        assert "result" not in settled and "response" not in settled
        assert (host.find(1, "turn.stopping") is not None) == (code == "handler_failed")
        host.turn(1, "u", input)
        await host.settled(1, "u")


async def test_schemas_transform_input_and_result(tmp_path: Path) -> None:
    """[A2]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "typed")
        host.turn(1, "t", {"issue": 42})
        assert (await host.settled(1, "t"))["result"] == {"ok": True}


async def test_a_failed_init_tells_its_traceback_and_ends_the_process(tmp_path: Path) -> None:
    """[S9] [S14]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "never")
        failed = await host.seen(1, "init.failed")
        assert failed["error"]["code"] == "init_failed"
        assert "RuntimeError: init is broken" in failed["error"]["message"]
        assert await host.seen(0, "scope.exited", channel=1) == {"t": "scope.exited", "channel": 1, "code": 1}


async def test_a_missing_definition_fails_init(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "nothing_of_that_name")
        assert "nothing_of_that_name" in (await host.seen(1, "init.failed"))["error"]["message"]


async def test_an_agent_whose_path_is_no_module_name_is_loaded_by_its_file(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "dashed", file="more-agents/by-file.py")
        host.turn(1, "t")
        assert (await host.settled(1, "t"))["result"].startswith("_helmr_"), "a private name: no other module can be meant"


async def test_limits_raise_declared_errors_and_the_turn_goes_on(tmp_path: Path) -> None:
    """[E6] [S10]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "limits")
        host.turn(1, "t")
        settled = await host.settled(1, "t")
        assert settled["result"] == "response_already_staged"
        assert settled["response"] == [{"type": "text", "text": "first"}]
        assert host.texts(1) == ["content_limit_exceeded"]


async def test_after_the_handler_returned_nothing_is_staged(tmp_path: Path) -> None:
    """[S10]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "late_speaker")
        host.turn(1, "t")
        settled = await host.settled(1, "t")
        assert "response" not in settled and settled["result"] is None
        await host.until(lambda: "late: turn_settling" in logs(host), "the refusal")


async def test_exiting_in_a_handler_is_a_lost_process(tmp_path: Path) -> None:
    """[S14]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "exits")
        host.turn(1, "t")
        assert (await host.seen(0, "scope.exited", channel=1))["code"] == 3
        assert host.kinds(1) == ["init.done"]


async def test_a_loose_task_that_breaks_is_logged_and_harms_nothing(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "loose_task")
        host.turn(1, "t")
        assert (await host.settled(1, "t"))["result"] == "went on"
        host.turn(1, "u")
        await host.settled(1, "u")
        await host.until(lambda: "a loose task broke" in logs(host), "the log")


async def test_the_mcp_server_is_refused_clearly(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "mcp")
        host.turn(1, "t")
        assert (await host.settled(1, "t"))["result"] == "mcp_unavailable"


async def test_a_thread_handler_blocks_in_its_calls(tmp_path: Path) -> None:
    """[A1]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "threaded")
        host.turn(1, "t", "in")
        settled = await host.settled(1, "t")
        assert settled["result"] == {"receipt": 1002, "input": "in"}
        assert settled["response"] == [{"type": "text", "text": "thread done"}]
        assert host.texts(1) == ["from a thread", "0", "1", "2"]


def logs(host: Host) -> str:
    return "".join(frame["text"] for frame in host.said if frame["t"] == "log")
