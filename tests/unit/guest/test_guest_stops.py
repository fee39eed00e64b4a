"""Stops, messages and questions of a real Session process. [S7], [S11], [S13], [Q1]-[Q4]."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.guest.guest_host import Host, alive

pytestmark = pytest.mark.anyio


async def ready(host: Host, attribute: str, **members: Any) -> None:
    """A running Turn `t` whose first output is stored."""
    await host.attached()
    host.start(1, attribute, **members)
    host.turn(1, "t")
    await host.seen(1, "turn.output")


@pytest.mark.ud("UD-30")
@pytest.mark.parametrize("reason", ["turn_interrupted", "session_interrupted", "cancelled", "deadline"])
async def test_a_stop_cancels_the_handler_and_joins_its_callbacks(tmp_path: Path, reason: str) -> None:
    """[A6] [S13]; output of the drain is kept [S11]"""
    async with Host(tmp_path) as host:
        await ready(host, "sleeper")
        host.stop(1, "t", reason)
        host.stop(1, "t", "cancelled")
        settled = await host.settled(1, "t")
        assert settled["status"] == "stopped" and "result" not in settled and "error" not in settled
        assert sorted(host.texts(1)) == ["callback output", f"cleaned {reason}", "ready"]
        await host.until(lambda: f"callback {reason} {reason}" in logs(host), "the plain callback")
        host.turn(1, "u")
        await host.until(lambda: host.texts(1).count("ready") == 2, "the next Turn")


async def test_a_handler_that_swallows_the_cancellation_cannot_complete(tmp_path: Path) -> None:
    """[S11]"""
    async with Host(tmp_path) as host:
        await ready(host, "swallower")
        host.stop(1, "t")
        settled = await host.settled(1, "t")
        assert settled == {"t": "turn.settled", "turn": "t", "status": "stopped"}


@pytest.mark.ud("UD-30")
async def test_a_handler_that_does_not_end_in_its_time_is_undrained_and_takes_no_turn(tmp_path: Path) -> None:
    """[S13]"""
    async with Host(tmp_path) as host:
        await ready(host, "stubborn")
        host.stop(1, "t", seconds=0.2)
        assert "cleanup time" in (await host.seen(1, "turn.undrained", turn="t"))["detail"]
        host.turn(1, "u")
        host.say(0, {"t": "scope.kill", "channel": 1})
        assert (await host.seen(0, "scope.exited", channel=1))["signal"] == 9
        assert host.find(1, "turn.settled") is None


async def test_a_callback_that_raises_leaves_the_turn_undrained_at_once(tmp_path: Path) -> None:
    """[S13]"""
    async with Host(tmp_path) as host:
        await ready(host, "bad_callback")
        began = time.monotonic()
        host.stop(1, "t")
        assert "the callback is broken" in (await host.seen(1, "turn.undrained"))["detail"]
        assert time.monotonic() - began < 5


async def test_a_callback_registered_while_draining_starts_at_once(tmp_path: Path) -> None:
    """[S13]"""
    async with Host(tmp_path) as host:
        await ready(host, "late_callback")
        host.stop(1, "t")
        await host.settled(1, "t")
        assert host.texts(1) == ["ready", "late callback ran"]


@pytest.mark.ud("UD-30")
async def test_a_failing_handler_marks_its_stop_first_and_runs_callbacks(tmp_path: Path) -> None:
    """[S11] [S13]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "failing_with_callbacks")
        host.turn(1, "t")
        settled = await host.settled(1, "t")
        assert host.kinds(1) == ["init.done", "turn.stopping", "turn.output", "turn.settled"]
        assert host.find(1, "turn.stopping", cause="handler_failed") is not None
        assert host.texts(1) == ["callback failed"]
        assert settled["error"]["code"] == "handler_failed"


async def test_callbacks_never_run_on_success(tmp_path: Path) -> None:
    """[S13]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "never_cancelled")
        host.turn(1, "t")
        assert (await host.settled(1, "t"))["result"] == "fine"
        host.say(1, {"t": "session.end", "reason": "shutdown", "seconds": 5})
        assert (await host.seen(0, "scope.exited", channel=1))["code"] == 0
        assert "must not run" not in logs(host)


async def test_a_thread_handler_is_refused_after_the_stop(tmp_path: Path) -> None:
    """[A1]"""
    async with Host(tmp_path) as host:
        await ready(host, "threaded_wait")
        host.stop(1, "t")
        assert (await host.settled(1, "t"))["status"] == "stopped"
        await host.until(lambda: "refused: turn_interrupted" in logs(host), "the refusal")
        assert "thread callback turn_interrupted" in logs(host)
        assert host.texts(1) == ["ready"]


@pytest.mark.parametrize("reason", ["shutdown", "cancelled"])
async def test_the_end_of_a_session_stops_its_turn_and_exits_with_zero(tmp_path: Path, reason: str) -> None:
    """[A6] [S13]: a cancel tells its own reason"""
    async with Host(tmp_path) as host:
        await ready(host, "sleeper")
        host.say(1, {"t": "session.end", "reason": reason, "seconds": 5})
        assert (await host.settled(1, "t"))["status"] == "stopped"
        assert f"cleaned {reason}" in host.texts(1)
        assert (await host.seen(0, "scope.exited", channel=1))["code"] == 0


async def test_the_end_of_a_session_aborts_a_running_init(tmp_path: Path) -> None:
    """[S9]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "waits_in_init")
        await host.until(lambda: "init waits" in logs(host), "init")
        host.say(1, {"t": "session.end", "reason": "close", "seconds": 5})
        assert (await host.seen(0, "scope.exited", channel=1))["code"] == 0
        assert host.kinds(1) == []


async def test_messages_are_handled_in_order_and_a_rejection_harms_nothing(tmp_path: Path) -> None:
    """[S7]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "listener")
        host.turn(1, "t")
        await host.seen(1, "messages.open")
        for id, text in [("a", "one"), ("b", "reject"), ("a", "one"), ("c", "two"), ("d", "enough")]:
            host.message(1, "t", id, text)
        settled = await host.settled(1, "t")
        assert settled["result"] == ["one", "two", "enough"]
        about = [(f["t"], f["id"]) for f in host.stored[1] if f["t"].startswith("message.")]
        assert about == [
            ("message.started", "a"), ("message.delivered", "a"), ("message.started", "b"), ("message.rejected", "b"),
            ("message.started", "c"), ("message.delivered", "c"), ("message.started", "d"), ("message.delivered", "d"),
        ]  # fmt: skip
        rejected = await host.seen(1, "message.rejected", id="b")
        assert (rejected["reason"], rejected["delivery"], rejected["detail"]) == ("message_rejected", "not_delivered", "not this one")
        host.message(1, "t", "late", "too late")
        host.turn(1, "u")
        await host.until(lambda: host.kinds(1).count("messages.open") == 2, "the next Turn's handler")
        assert host.find(1, "message.started", id="late") is None


async def test_a_broken_message_handler_fails_the_turn(tmp_path: Path) -> None:
    """[S7]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "listener")
        host.turn(1, "t")
        await host.seen(1, "messages.open")
        host.messages(1, "t", {"a": "break", "b": "never started"})
        settled = await host.settled(1, "t")
        assert settled["error"]["code"] == "message_handler_failed"
        a, b = await host.seen(1, "message.rejected", id="a"), await host.seen(1, "message.rejected", id="b")
        assert (a["reason"], a["delivery"]) == ("callback_failed", "uncertain")
        assert (b["reason"], b["delivery"]) == ("turn_terminated", "not_delivered")
        assert host.find(1, "turn.stopping", cause="message_handler_failed") is not None


async def test_a_stop_rejects_started_and_waiting_messages(tmp_path: Path) -> None:
    """[S7] [S11]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "listener")
        host.turn(1, "t")
        await host.seen(1, "messages.open")
        host.message(1, "t", "a", "slow")
        host.message(1, "t", "b", "waits")
        await host.seen(1, "turn.output")
        host.stop(1, "t")
        await host.settled(1, "t")
        a, b = await host.seen(1, "message.rejected", id="a"), await host.seen(1, "message.rejected", id="b")
        assert (a["reason"], a["delivery"]) == ("turn_terminated", "uncertain")
        assert (b["reason"], b["delivery"]) == ("turn_terminated", "not_delivered")
        assert host.kinds(1)[-1] == "turn.settled"


@pytest.mark.ud("UD-08")
async def test_a_started_message_is_finished_after_the_handler_returned(tmp_path: Path) -> None:
    """[S10]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "finisher")
        host.turn(1, "t")
        await host.seen(1, "messages.open")
        host.message(1, "t", "a", "x")
        host.message(1, "t", "b", "unstarted")
        assert (await host.settled(1, "t"))["status"] == "completed"
        assert host.texts(1) == ["finished after the handler"]
        assert (await host.seen(1, "message.rejected", id="b"))["reason"] == "turn_closed"
        assert host.kinds(1)[-2:] == ["message.delivered", "turn.settled"]


async def test_an_answer_resolves_its_question(tmp_path: Path) -> None:
    """[Q1] [Q3]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "asker")
        host.turn(1, "t")
        asked = await host.seen(1, "question.ask")
        assert asked["question"] == {"prompt": [{"type": "text", "text": "Really?"}], "answer": {"type": "text"}}
        op = host.stored[1].index(asked) + 1
        for text in ("yes", "no"):
            answer = {"type": "text", "text": text}
            host.say(1, {"t": "question.answer", "ask": op, "answer": answer, "responded_by": {"kind": "user", "id": "someone"}})
        assert (await host.settled(1, "t"))["result"] == {"answer": {"type": "text", "text": "yes"}, "by": "someone"}


async def test_a_cancelled_question_raises(tmp_path: Path) -> None:
    """[Q3]: absence is never consent"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "asker")
        host.turn(1, "t")
        await host.seen(1, "question.ask")
        host.say(1, {"t": "question.cancelled", "ask": 2, "reason": "session_closing"})
        settled = await host.settled(1, "t")
        assert settled["error"]["code"] == "handler_failed" and "session_closing" in settled["error"]["message"]


@pytest.mark.ud("UD-63")
@pytest.mark.parametrize("how", ["answered", "session_closing", "withdrawn"])
async def test_a_handler_is_told_how_its_question_ended(tmp_path: Path, how: str) -> None:
    """[Q3]: an answer is returned, also one that says no; all else raises, and says why."""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "tells_how")
        host.turn(1, "t", input=[{"type": "text", "text": "signal" if how == "withdrawn" else "wait"}])
        await host.seen(1, "question.ask")
        if how == "answered":
            by = {"kind": "user", "id": "someone"}
            host.say(1, {"t": "question.answer", "ask": 2, "answer": {"type": "text", "text": "no"}, "responded_by": by})
        elif how == "session_closing":
            host.say(1, {"t": "question.cancelled", "ask": 2, "reason": how})
        else:
            assert (await host.seen(1, "question.withdraw"))["ask"] == 2
        assert (await host.settled(1, "t"))["result"] == ({"answered": "no"} if how == "answered" else {"cancelled": how})


async def test_an_owned_session_cannot_ask(tmp_path: Path) -> None:
    """[Q1]"""
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "asker", open={"session": {"id": "s", "parent": {"id": "p"}}})
        host.turn(1, "t")
        assert "root_session_required" in (await host.settled(1, "t"))["error"]["message"]
        assert host.find(1, "question.ask") is None


async def test_giving_up_on_an_answer_withdraws_the_question(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await host.attached()
        host.start(1, "impatient")
        host.turn(1, "t")
        assert (await host.settled(1, "t"))["result"] == "nobody answered"
        assert (await host.seen(1, "question.withdraw"))["ask"] == 2


@pytest.mark.ud("UD-15")
async def test_a_blocked_event_loop_can_still_be_killed(tmp_path: Path) -> None:
    async with Host(tmp_path) as host:
        await ready(host, "blocks")
        pid = (await host.seen(0, "scope.started", channel=1))["pid"]
        host.stop(1, "t")
        host.say(0, {"t": "scope.kill", "channel": 1})
        assert (await host.seen(0, "scope.exited", channel=1))["signal"] == 9
        assert not alive(pid)


def logs(host: Host) -> str:
    return "".join(frame["text"] for frame in host.said if frame["t"] == "log")
