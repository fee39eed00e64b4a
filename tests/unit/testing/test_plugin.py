"""The plugin beside other people's tests: it costs nothing until a fixture is used, and names what exists."""

from __future__ import annotations

import ast
import asyncio
import importlib.metadata
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import helmr.control
import helmr.testing
from helmr.protocol import frames
from helmr.testing import Gate
from helmr.testing.faults import WHAT
from helmr.testing.process import SessionLoop
from helmr.testing.threads import LoopThread

pytestmark = pytest.mark.anyio


def test_loading_the_plugin_imports_nothing_but_pytest_and_itself() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import helmr.testing.plugin; print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert [name for name in found if name.startswith("helmr")] == ["helmr", "helmr.testing", "helmr.testing.plugin"]
    assert not {"aiohttp", "asyncpg", "asyncio", "structlog", "starlette", "pydantic"} & set(found)


def test_pytest_finds_the_plugin_by_itself() -> None:
    found = importlib.metadata.entry_points(group="pytest11", name="helmr")
    assert [entry.value for entry in found] == ["helmr.testing.plugin"]


def test_what_is_public_is_there() -> None:
    assert helmr.testing.__all__ == [
        "POINTS",
        "AsyncClock",
        "Clock",
        "Fault",
        "Faults",
        "Gate",
        "Person",
        "Runtime",
        "RuntimeFactory",
        "RuntimeProblem",
        "SyncRuntime",
        "SyncRuntimeFactory",
    ]
    for name in helmr.testing.__all__:
        assert getattr(helmr.testing, name) is not None
    with pytest.raises(AttributeError):
        _ = helmr.testing.Nothing


def test_every_fault_point_that_is_documented_exists() -> None:
    """STYLE 18. A point that the product passes no more would make tests fail that arm it, and say nothing of why."""
    sources = Path(helmr.control.__path__[0]).rglob("*.py")
    calls = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and node.args]
    names = [call.args[0] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "write"]
    written = {name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)}
    flushed = {f"flush.{kind}" for kind in ("admit", "claim", "append", "settle")}
    passed = written | set(frames.UP) | flushed | {"create", "close", "cancel"}
    assert set(WHAT) <= passed


def test_every_frame_kind_and_point_stands_in_the_table() -> None:
    """The docstring is the public list."""
    from helmr.testing import faults

    assert faults.__doc__ is not None
    assert [what for what in WHAT if f"`{what}`" not in faults.__doc__] == []


# --- gates --------------------------------------------------------------------------------------------------------------------


async def test_a_gate_lets_through_who_waited_in_any_loop_and_who_comes_later() -> None:
    gate = Gate()
    passed: list[str] = []
    other = LoopThread("other", asyncio.new_event_loop())

    async def wait(name: str) -> None:
        await gate.wait()
        passed.append(name)

    elsewhere = asyncio.run_coroutine_threadsafe(wait("elsewhere"), other.loop)
    here = asyncio.create_task(wait("here"))
    thread = threading.Thread(target=gate.wait_blocking)
    thread.start()
    assert not gate.is_open
    await asyncio.sleep(0)
    assert passed == []
    gate.open()
    await here
    await asyncio.wrap_future(elsewhere)
    await asyncio.to_thread(thread.join)
    await wait("late")
    assert sorted(passed) == ["elsewhere", "here", "late"]
    other.close()


async def test_a_waiter_that_is_cancelled_leaves_the_gate() -> None:
    gate = Gate()
    waiting = asyncio.create_task(gate.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open()
    with pytest.raises(TimeoutError):
        Gate().wait_blocking(0.01)


# --- loops --------------------------------------------------------------------------------------------------------------------


def test_a_session_s_loop_runs_ahead_and_refuses_other_threads() -> None:
    ahead = 0.0
    loop = SessionLoop(lambda: ahead)
    before = loop.time()
    ahead = 3600.0
    assert loop.time() >= before + 3600
    refused: list[BaseException] = []

    def use() -> None:
        try:
            loop.call_soon(print)
        except RuntimeError as error:
            refused.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "helmr.testing.Gate" in str(refused[0])
    loop.close()


def test_a_call_that_does_not_end_tells_where_it_waits() -> None:
    thread = LoopThread("stuck", asyncio.new_event_loop())

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"(?s)stuck did not finish .*wait_for_ever in 0\.05 s:.*run_forever"):
        thread.run(wait_for_ever(), 0.05)
    thread.close()
    thread.close()
