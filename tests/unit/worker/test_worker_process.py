"""`helmr worker` as a process, and the hostd that it starts [C3], SPEC 13."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.unit.worker.link_server import CREDENTIAL, endpoint
from tests.unit.worker.scripted_control import ScriptedControl

from helmr.host.hostd.client import HostdClient
from helmr.host.worker import HostdProcess, WorkerProcessConfig, run_worker
from helmr.protocol.errors import ConfigurationMissing, SetupError

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio

PROGRAM = """
import asyncio, sys
from pathlib import Path
from helmr.host.worker import WorkerProcessConfig, run_worker
asyncio.run(run_worker(WorkerProcessConfig(state=Path(sys.argv[1]), url=sys.argv[2], driver="process")))
"""


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """A state folder whose hostd is ended afterwards."""
    yield tmp_path
    try:
        client = await HostdClient.connect(tmp_path / "hostd" / "hostd.sock")
    except OSError:
        return
    await client.shutdown(end_computers=True)
    await client.wait_closed()
    await client.close()


async def test_a_worker_needs_an_address_and_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HELMR_API_URL", "HELMR_WORKER_CREDENTIAL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationMissing) as missing:
        await run_worker(WorkerProcessConfig(state=tmp_path, url="http://127.0.0.1:1"))
    assert "HELMR_WORKER_CREDENTIAL" in missing.value.advice


async def test_the_process_starts_a_hostd_links_drains_at_sigterm_and_leaves_hostd_running(folder: Path) -> None:
    control = ScriptedControl()
    async with asyncio.timeout(30), endpoint(control.accept) as server:
        environment = {**os.environ, "HELMR_WORKER_CREDENTIAL": CREDENTIAL}
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, str(folder), server.url, env=environment)
        hello = await control.expect("hello")
        assert hello["worker"]["driver"] == "process"
        await control.expect("renew")
        process.send_signal(signal.SIGTERM)
        await control.expect("renew", draining=True)
        assert await process.wait() == 0
        await control.until(lambda: control.closed == 1)
        client = await HostdClient.connect(folder / "hostd" / "hostd.sock")
        assert (await client.info())["driver"] == "process"
        await client.close()


async def test_a_hostd_that_runs_is_used_and_one_that_died_is_started_again(folder: Path) -> None:
    async with asyncio.timeout(30):
        first, second = (HostdProcess(folder / "hostd", "process") for _ in range(2))
        await asyncio.gather(first.ensure(), second.ensure())
        # Both started one; the one that came second has ended already, and can't come up after a later shutdown.
        started = [hostd._pid for hostd in (first, second)]
        assert started.count(None) == 1
        client = await first.connect(lambda name, members: None)
        await client.shutdown(end_computers=False)
        await client.wait_closed()
        await client.close()
        again = await second.connect(lambda name, members: None)
        assert (await again.info())["computers"] == []
        await again.close()
        assert [hostd._pid for hostd in (first, second)] != started


async def test_a_hostd_that_cannot_run_is_told_with_what_it_said(folder: Path) -> None:
    place = folder / "hostd"
    place.write_text("a file, not a folder")
    async with asyncio.timeout(30):
        with pytest.raises(SetupError):
            await HostdProcess(place, "process").ensure()
        with pytest.raises(OSError):
            await HostdProcess(place, "process").connect(lambda name, members: None)
    place.unlink()
    place.mkdir()
    (place / "lock").mkdir()
    (place / "hostd.log").write_text("an earlier run's last words\n")
    async with asyncio.timeout(30):
        with pytest.raises(SetupError) as failed:
            await HostdProcess(place, "process").ensure()
    assert "can't be used" in failed.value.detail
    assert "last words" not in failed.value.detail
