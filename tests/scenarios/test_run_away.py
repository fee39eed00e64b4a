"""Processes that run away in a Computer with its real supervisor: crowds, orphans and daemons. [C2], [C3]."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.effort import often
from tests.engine import engine
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
MIB = 1 << 20
SMALL = {"pids": 12, "memory": 512 * MIB}
WIDE = {"pids": 5000, "memory": 3072 * MIB}


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
    driver, limits = request.param if isinstance(request.param, tuple) else (request.param, SMALL)
    async with contextlib.AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="helmr-scenario-", dir="/var/tmp"))
        if driver == "gvisor":
            try:
                patch.setenv("HELMR_RUNSC", find_runsc())
            except RunscMissing as missing:
                pytest.skip(str(missing))
        if driver == "docker":
            patch.setenv("HELMR_DOCKER", str(await stack.enter_async_context(engine())))
        host = Host(Path(name), driver, agent=AGENT, limits=limits)
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
STATES = """
def states():
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(name)] = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0]
        except OSError:
            continue
    return found

def zombies():
    ends = time.monotonic() + 50
    while (left := [pid for pid, state in states().items() if state == "Z"]) and time.monotonic() < ends:
        time.sleep(0.02)
    return len(left)
"""
FORK = """
import os, time
def fork():
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.001)
"""
ORPHANS = f"""{STATES}
code = '''{FORK}
for _ in range(COUNT):
    if (pid := fork()) == 0:
        if fork() == 0:
            os.setsid()
        os._exit(0)
    os.waitpid(pid, 0)
'''
done = subprocess.run([sys.executable, "-I", "-S", "-c", code])
said = [done.returncode, zombies()]
"""
DAEMON = f"""{STATES}
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
while not os.path.exists("/workspace/daemon"):
    time.sleep(0.02)
said = [zombies(), int(open("/workspace/daemon").read()) in states()]
"""
CROWD = """
code = '''
import os, signal, time
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
made = refused = 0
while made < COUNT and refused < 10:
    try:
        if os.fork() == 0:
            try:
                if os.fork() == 0:
                    os.setsid()
                    os.close(1)
                    time.sleep(600)
            finally:
                os._exit(0)
        made += 1
    except BlockingIOError:
        refused += 1
        time.sleep(0.01)
print(made)
'''
done = subprocess.run([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE)
said = int(done.stdout)
"""


@pytest.mark.parametrize("box", ["gvisor"], indirect=True)
async def test_a_crowd_of_a_session_that_runs_away_is_held_its_orphans_are_reaped_and_its_daemons_end_with_it(box: Box) -> None:
    """[C2], [C3]: where the host can't group what is inside, the guest's own kernel does. Each time the Session goes on."""
    # gVisor counts those that are just being made apart from those that are there: some times as many may come to be, on a busy host more.
    assert 5 < await box.run(BOMB) < 250, "it was stopped long before the 500 that it wanted"
    assert await box.run(ORPHANS.replace("COUNT", "20")) == [0, 0]
    assert await box.run(DAEMON) == [0, True]
    box.host.control.send("session.kill", computer=box.host.computer, channel=1, reason="test")
    await box.host.control.expect("session.exited", channel=1)
    await box.host.start_session(2)
    box.op = 0
    assert await box.run("said = os.path.exists('/proc/' + open('/workspace/daemon').read())", 2) is False


@pytest.mark.parametrize("box", ["bubblewrap"], indirect=True)
async def test_what_a_session_took_of_the_processes_is_free_when_it_has_ended(box: Box) -> None:
    """[C2], [C3]: while it has them all, another is told why it can't begin. The next one begins when the dead may not be reaped yet."""
    control = box.host.control
    for channel in range(1, 2 * often(2, soak=100), 2):
        box.op = 0
        assert await box.run(CROWD.replace("COUNT", "1000"), channel) < 100
        if channel == 1:
            await box.host.open_session(1000)  # for which there may be room still
            await control.until(lambda: any(told.get("channel") == 1000 for told in control.told))
            await box.host.open_session(1001)
            refused = await control.expect("session.exited", channel=1001)
            assert (refused["cause"], refused["message"]) == ("failed", "The Computer has as many processes as its Template allows.")
        control.send("session.kill", computer=box.host.computer, channel=channel, reason="test")
        await control.expect("session.exited", channel=channel)
        await box.host.start_session(channel + 2)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("box", "count"),
    [("bubblewrap", 10_000), ("docker", 10_000), ("gvisor", 1_000)],
    indirect=["box"],
    ids=["bubblewrap", "docker", "gvisor"],
)
@pytest.mark.timeout(300)
async def test_ten_thousand_orphans_are_reaped_within_a_small_limit(box: Box, count: int) -> None:
    """[C2]: twelve processes may be there, the dead among them, so this ends only if pid 1 and keepers keep up. gVisor forks too slowly for
    as many."""
    assert await box.run(ORPHANS.replace("COUNT", str(count))) == [0, 0]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("box", "count"),
    [(("bubblewrap", WIDE), 4000), (("docker", WIDE), 4000), (("gvisor", WIDE), 200)],
    indirect=["box"],
    ids=["bubblewrap", "docker", "gvisor"],
)
@pytest.mark.timeout(300)
async def test_thousands_of_orphans_that_hear_no_signal_end_with_their_session(box: Box, count: int) -> None:
    """[C3]: each in a session of its own, and pid 1 their parent once the keeper is gone. The next Session finds none of them."""
    assert await box.run(CROWD.replace("COUNT", str(count))) == count
    box.host.control.send("session.kill", computer=box.host.computer, channel=1, reason="test")
    await box.host.control.expect("session.exited", channel=1)
    await box.host.start_session(2)
    box.op = 0
    assert await box.run(f"{STATES}\nsaid = [zombies(), len(states()) < 20]", 2) == [0, True]
