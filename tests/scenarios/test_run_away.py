"""Processes that run away in a Computer with its real supervisor: crowds, orphans and daemons. [C2], [C3]."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.runsc import RunscMissing, find_runsc
from tests.scenarios.host_side import Host, hosted

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

AGENT = b"""
import asyncio, json, os, subprocess, sys, time

from helmr import agent, image, template

box = template(id="box", image=image("box").from_host())


@agent(id="echo", template=box)
async def echo(turn, ctx):
    def run():
        space = dict(globals())
        exec(turn.input[0]["text"], space)
        return space["said"]

    await turn.output.write(json.dumps(await asyncio.to_thread(run)))
"""
PIDS = 12
MIB = 1 << 20


class Box:
    """A Computer with one Session, which runs the code that it is told."""

    def __init__(self, host: Host) -> None:
        self.host, self.op = host, 0

    async def run(self, code: str, channel: int = 1) -> Any:
        self.op, said = await self.host.run_turn(channel, code, self.op)
        return json.loads(said)


@pytest.fixture
async def box(request: pytest.FixtureRequest) -> AsyncIterator[Box]:
    if os.geteuid() != 0:
        pytest.skip("these drivers with all they can do need root")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="helmr-scenario-", dir="/var/tmp") as name:
        if request.param == "gvisor":
            try:
                patch.setenv("HELMR_RUNSC", find_runsc())
            except RunscMissing as missing:
                pytest.skip(str(missing))
        host = Host(Path(name), request.param, agent=AGENT, limits={"pids": PIDS, "memory": 512 * MIB})
        async with hosted(host):
            await host.start_worker("local")
            await host.start_computer()
            await host.attach({})
            await host.start_session(1)
            yield Box(host)


BOMB = """
code = '''
import os, time
made = []
try:
    while len(made) < 500:
        made.append(os.fork())
        if made[-1] == 0:
            time.sleep(600)
except OSError:
    pass
print(len(made), flush=True)
for pid in made:
    os.kill(pid, 9)
'''
done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
said = int(done.stdout)
"""
ORPHANS = """
code = '''
import os, time
made = 0
while made < {count}:
    pid = None
    try:
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                os.setsid()
            os._exit(0)
    except BlockingIOError:  # as many as there may be are there, until those that ended are reaped
        if pid == 0:
            os._exit(1)
        time.sleep(0.001)
        continue
    made += os.waitpid(pid, 0)[1] == 0
'''
subprocess.run([sys.executable, "-c", code], check=True)
code = '''
import os, time
os.setsid()
if os.fork():
    os._exit(0)
with open("/workspace/daemon.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("/workspace/daemon.new", "/workspace/daemon")
time.sleep(600)
'''
subprocess.run([sys.executable, "-c", code])
def states():
    found = {{}}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(name)] = open(f"/proc/{{name}}/stat").read().rpartition(")")[2].split()[0]
        except OSError:
            continue
    return found
ends = time.monotonic() + 50
while (left := [pid for pid, state in states().items() if state == "Z"]) and time.monotonic() < ends:
    time.sleep(0.02)
while not os.path.exists("/workspace/daemon"):
    time.sleep(0.02)
daemon = int(open("/workspace/daemon").read())
said = [len(left), daemon in states()]
if {again}:
    os.kill(daemon, 9)
    os.unlink("/workspace/daemon")
"""


@pytest.mark.parametrize("box", ["gvisor"], indirect=True)
async def test_a_crowd_of_a_session_that_runs_away_is_held_its_orphans_are_reaped_and_its_daemons_end_with_it(box: Box) -> None:
    """[C2], [C3]: where the host can't group what is inside, the guest's own kernel does. Each time the Session goes on."""
    # gVisor counts those that are just being made apart from those that are there: some times as many may come to be, on a busy host more.
    assert 5 < await box.run(BOMB) < 250, "it was stopped long before the 500 that it wanted"
    assert await box.run(ORPHANS.format(count=20, again=False)) == [0, True]
    box.host.control.send("session.kill", computer=box.host.computer, channel=1, reason="test")
    await box.host.control.expect("session.exited", channel=1)
    await box.host.start_session(2)
    box.op = 0
    assert await box.run("said = os.path.exists('/proc/' + open('/workspace/daemon').read())", 2) is False


@pytest.mark.soak
@pytest.mark.parametrize("box", ["bubblewrap", "gvisor"], indirect=True)
@pytest.mark.timeout(1800)
async def test_ten_thousand_orphans_are_reaped(box: Box) -> None:
    """[C2]: some at a time, since a Turn of this test may take no longer."""
    for _ in range(40):
        assert await box.run(ORPHANS.format(count=250, again=True)) == [0, True]
