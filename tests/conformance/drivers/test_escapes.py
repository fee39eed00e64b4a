"""Ways out of a Computer, tried from inside as root, in every driver that isolates [C2], [C4], I10: one process tries them all."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jail import Jail

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root", "bubblewrap-user", "gvisor", "docker")]

ESCAPEE = (Path(__file__).parent / "escapee.py").read_text()
REPOSITORY = Path(__file__).resolve().parents[3]
MIB = 1 << 20

REFUSED = {
    "EPERM", "EACCES", "EROFS", "ENOENT", "ESRCH", "EINVAL", "EIO", "ENOSYS", "ENODEV", "ENOTTY", "ENOTSUP", "EBUSY", "EXDEV", "ETXTBSY",
    "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EAFNOSUPPORT", "ValueError('not allowed to raise maximum limit')", "NOTHING",
}  # fmt: skip
"""How a way is closed: NOTHING of what was looked for was there."""

GRANTED: Mapping[str, Mapping[str, str]] = {
    # Its supervisor counts as guest (I4): who is root inside can reach into it, and gains what it had.
    "bubblewrap": {"write /proc/1/oom_score_adj": "ALLOWED", "read the memory of pid 1": "ALLOWED"},
    "docker": {"write /proc/1/oom_score_adj": "ALLOWED", "read the memory of pid 1": "ALLOWED"},
    # All of these act on gVisor's own kernel, which is this Computer's alone.
    "gvisor": {
        "write /proc/1/oom_score_adj": "ALLOWED",
        "write /sys/fs/cgroup/release_agent": "ALLOWED",
        "open /dev/fuse": "ALLOWED",
        "open /dev/net/tun": "ALLOWED",
        "unshare: user": "ALLOWED",
        "unshare: cgroup": "ALLOWED",
        "mount in a user namespace of one's own": "INSIDE",
        "process_vm_readv of pid 1": "ALLOWED",
        "priority": "ALLOWED",
        "be spared when memory is short": "ALLOWED",
        "call keyctl": "ALLOWED",
        "call syslog": "ALLOWED",
    },
}
"""What a driver lets a guest do, since nothing comes of it."""


@contextmanager
def baits(jail: Jail, folder: Path) -> Iterator[dict[str, Any]]:
    """Things of the host that a guest must not reach."""
    secret = folder / "host-secret"
    secret.write_text("secret")
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x48454C00 | os.getpid() & 0xFF
    memory = libc.shmget(key, 4096, 0o1666)
    name = f"helmr-test-{os.getpid()}"
    try:
        with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as listener:
            abstract.bind(f"\0{name}")
            abstract.listen()
            yield {
                "places": [str(secret), str(jail.state), str(REPOSITORY)],
                "pid": os.getpid(),
                "abstract": f"@{name}",
                "port": listener.getsockname()[1],
                "shared": key,
            }
    finally:
        libc.shmctl(memory, 0, None)


async def let_end(jail: Jail, code: str) -> None:
    """Start in c1 what ends it, maybe before it has answered."""
    with contextlib.suppress(ConnectionError, json.JSONDecodeError):
        async with jail.inside("c1") as inmate:
            await inmate.run(code, wait=False)


async def test_every_way_out_is_closed_or_leads_nowhere(jail: Jail, folder: Path) -> None:
    """[C2], I10: the host's name and clock are afterwards what they were, and pid 1 answers."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of calls are those of x86_64")
    name = socket.gethostname()
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        with baits(jail, folder) as given:
            said = await inmate.run(f"GIVEN = {given!r}\n{ESCAPEE}", seconds=40)
        assert said.exit == 0, said.out
        found: dict[str, str] = json.loads(said.out.splitlines()[-1])
        granted = GRANTED[jail.driver]
        assert {what: how for what, how in found.items() if how not in REFUSED and granted.get(what) != how} == {}
        assert len(found) > 80
        assert await inmate.value("'alive'") == "alive"
    assert socket.gethostname() == name


async def test_signals_to_pid_1_reach_nobody_or_end_this_computer_alone(jail: Jail) -> None:
    """[C2], [C3]: root inside may end its own Computer, which is told; its files are there at the next start."""
    await jail.start("c1")
    await jail.start("c2")
    kill = "import os, pathlib, signal\npathlib.Path('/workspace/kept').write_text('kept')\n"
    kill += "for number in (signal.SIGSTOP, signal.SIGSEGV, signal.SIGKILL): os.kill(1, number)\nprint('sent')"
    if jail.driver == "gvisor":
        await let_end(jail, kill)
        told = await jail.notice("computer.exited")
        assert (told["computer"], "signal" in told or "code" in told) == ("c1", True)
    else:
        async with jail.inside("c1") as inmate:
            assert (await inmate.run(kill)).out == "sent"
            assert await inmate.value("1") == 1
    await jail.start("c1")
    for computer in ("c1", "c2"):
        async with jail.inside(computer) as inmate:
            assert await inmate.value("os.path.exists('/workspace/kept')") == (computer == "c1")


@pytest.mark.kinds("bubblewrap-root", "bubblewrap-user")
@pytest.mark.soaked("docker")
async def test_a_guest_that_floods_its_way_to_hostd_delays_itself_alone(jail: Jail) -> None:
    """I4: a thousand connections that say nothing, half of a line, or far too much; another Computer is served meanwhile."""
    await jail.start("c1")
    await jail.start("c2")
    flood = """
import socket
held = []
for number in range(1000):
    s = socket.socket(socket.AF_UNIX)
    s.setblocking(False)
    try:
        s.connect("/run/helmr/host.sock")
        s.send((b"", b'{"hello": "sco', b"x" * 200_000)[number % 3] or b" ")
    except OSError:
        pass
    held.append(s)
open("/workspace/ready", "w").close()
import time
while True:
    time.sleep(1)
"""
    async with jail.inside("c1") as flooding, jail.inside("c2") as other:
        pid = (await flooding.run(f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))\n{flood}", wait=False)).out
        async with asyncio.timeout(20):
            while not await flooding.value("os.path.exists('/workspace/ready')"):
                await asyncio.sleep(0.02)
        await jail.client.create_scope("c2", 1)
        assert (await other.run("print('in scope')", scope=1)).out == "in scope"
        await flooding.value(f"os.kill({pid}, 9)")
        await jail.client.create_scope("c1", 1)
        assert (await flooding.run("print('in scope')", scope=1, seconds=20)).out == "in scope"


@pytest.mark.kinds("gvisor")
async def test_memory_taken_past_the_limits_of_processes_ends_the_computer_and_says_why(jail: Jail) -> None:
    """[C2], [S14]: shared memory is no data of a process; the group of the whole sandbox has the last word, and no other is touched."""
    await jail.start("c1", memory=64 * MIB)
    await jail.start("c2")
    await let_end(jail, "f = open('/dev/shm/bomb', 'wb')\nwhile True: f.write(bytes(1 << 22))")
    told = await jail.notice("computer.exited")
    assert told["computer"] == "c1" and told["oom"]["peak"] <= told["oom"]["limit"] + 2 * MIB
    async with jail.inside("c2") as inmate:
        assert await inmate.value("1") == 1
