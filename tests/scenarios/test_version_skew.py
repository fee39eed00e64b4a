"""A guest of an earlier version goes on under a newer hostd and a newer worker, and is renewed with its Computer's next start. [D5]"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.scenarios.host_side import Host, hosted, lock_holder

from helmr.host.worker import attachment
from helmr.protocol import frames

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90), pytest.mark.skipif(os.geteuid() != 0, reason="bubblewrap needs root here")]
FROZEN = Path(__file__).parents[1] / "data" / "guest-0.1.zip"
AGENT = b"""
import os
from pathlib import Path

import helmr
from helmr import agent, image, template

box = template(id="box", image=image("box").from_host())


@agent(id="echo", template=box)
async def echo(turn, ctx):
    old = Path(helmr.__file__).with_name("FROZEN").exists()
    await turn.output.write(f"{turn.input[0]['text']} in {os.getpid()}, {'an old' if old else 'a new'} guest")
"""

OLDER_HOSTD = """
import asyncio, os, sys
from pathlib import Path
from helmr.host.hostd.daemon import Hostd, HostdConfig
from helmr.host.sandbox import bubblewrap

bubblewrap.ensure_runtime = lambda folder: folder / "older"

async def main():
    hostd = Hostd(HostdConfig(state=Path(sys.argv[1])))
    await hostd.start()
    print("ready", flush=True)
    os.dup2(2, 1)
    await hostd.ended.wait()

asyncio.run(main())
"""
"""hostd as it is, but for the guest's side that its Computers get: the frozen one."""


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    with tempfile.TemporaryDirectory(prefix="helmr-scenario-", dir="/var/tmp") as folder:
        async with hosted(Host(Path(folder), "bubblewrap", agent=AGENT)) as found:
            yield found


def older_hostd(state: Path) -> subprocess.Popen[bytes]:
    runtime = state / "runtime" / "older"
    runtime.mkdir(parents=True)
    with zipfile.ZipFile(FROZEN) as archive:
        archive.extractall(runtime)
    for place in (state / "runtime", runtime):
        place.chmod(0o755)
    state.chmod(0o711)
    with (state / "older.log").open("wb") as log:
        started = subprocess.Popen([sys.executable, "-c", OLDER_HOSTD, str(state)], stdout=subprocess.PIPE, stderr=log)
    assert started.stdout is not None
    with started.stdout as said:
        assert b"ready\n" in iter(said.readline, b""), (state / "older.log").read_text()
    return started


async def test_an_older_guest_goes_on_under_a_newer_worker_and_is_renewed_by_a_start_of_its_computer(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D5], [C3]: the same process runs Turns for a worker two protocols later; only a reconstruction gives it a new supervisor."""
    state = host.folder / "hostd"
    older = await asyncio.to_thread(older_hostd, state)
    async with asyncio.timeout(60):
        await host.start_worker("local")
        await host.start_computer()
        await host.attach({})
        pid = await host.start_session(7)
        op, said = await host.run_turn(7, "one", 0)
        assert said.endswith(", an old guest")
        process = said.split(" in ")[1].split(",")[0]

        await host.stop_worker()
        older.send_signal(signal.SIGKILL)
        older.wait()
        monkeypatch.setattr(attachment, "PROTOCOL", frames.PROTOCOL + 2)
        await host.start_worker("local")
        assert lock_holder(state) != older.pid
        attached = await host.attach({"7": op})
        assert attached["channels"]["7"]["alive"]
        op, said = await host.run_turn(7, "two", op)
        assert said == f"two in {process}, an old guest", "the same process, under a new hostd and a newer worker"
        assert pid > 0 and (state / "runtime" / "older").is_dir(), "its files are not taken away under it"

        host.control.send("computer.stop", computer=host.computer, fence=1)
        await host.control.expect("computer.state", state="gone")
        await host.start_computer()
        await host.attach({})
        await host.start_session(8)
        _, said = await host.run_turn(8, "three", 0)
        assert said.endswith(", a new guest")
