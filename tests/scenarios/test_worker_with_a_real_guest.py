"""A worker, a hostd of its own and a real guest, against a scripted control plane: the whole host side without isolation [C3], I5, I6."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.scenarios.host_side import Host, hosted, lock_holder

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


@pytest.fixture(params=["process", "bubblewrap"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    if request.param == "bubblewrap" and os.geteuid() != 0:
        pytest.skip("bubblewrap with all it can do needs root")
    with tempfile.TemporaryDirectory(prefix="helmr-scenario-", dir="/var/tmp") as folder:
        async with hosted(Host(Path(folder), request.param)) as found:
            yield found


@pytest.mark.parametrize("kind", ["local", "websocket"])
async def test_a_turn_runs_end_to_end_and_goes_on_with_a_new_worker_and_a_new_hostd(host: Host, kind: str) -> None:
    async with asyncio.timeout(20):
        await host.start_worker(kind)
        await host.start_computer()
        await host.attach({})
        await host.start_session(7)
        op, said = await host.run_turn(7, "one", 0)
        assert said.startswith("hello one from ") and said.endswith("/workspace")

        await host.stop_worker()
        await host.start_worker(kind)
        attached = await host.attach({"7": op})
        assert attached["channels"] == {"7": {"alive": True, "acked": op - 1}}, "the settlement was not acknowledged"
        op, said = await host.run_turn(7, "two", op)
        assert said.startswith("hello two from ")

        os.kill(lock_holder(host.folder / "hostd"), signal.SIGKILL)
        op, said = await host.run_turn(7, "three", op)
        assert said.startswith("hello three from ")

        host.start_turn(7, "die", op)
        exited = await host.control.expect("session.exited", channel=7)
        assert (exited["cause"], exited["signal"]) == ("exited", 9)
        host.control.send("session.forget", computer=host.computer, channel=7)

        await host.start_session(8)
        host.control.send("session.kill", computer=host.computer, channel=8, reason="test")
        assert (await host.control.expect("session.exited", channel=8))["cause"] == "killed"

        host.control.send("computer.destroy", computer=host.computer, fence=1)
        assert (await host.control.expect("computer.state", state="gone"))["reason"] == "destroyed"
        assert not (host.folder / "hostd" / "computers" / host.computer).exists()
