"""Commands at the supervisor: programs in scopes of their own, output as numbered frames. [C8]"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.guest.guest_host import Host

from helmr.guest.scope import KEPT_BYTES

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with Host(tmp_path) as host:
        await host.seen(0, "hello")
        yield host


def run(host: Host, channel: int, *argv: str, stdin: bytes = b"", timeout_ms: int = 60_000, **members: Any) -> None:
    """Start a program as the worker does: what it reads comes first, in pieces."""
    for at in range(0, len(stdin), 300_000):
        piece = base64.b64encode(stdin[at : at + 300_000]).decode()
        host.say(0, {"t": "scope.stdin", "channel": channel, "at": at, "data": piece})
    frame = {"t": "scope.start", "channel": channel, "argv": argv, "env": {}, "cwd": "/", "timeout_ms": timeout_ms}
    host.say(0, {**frame, **members})


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


def output(host: Host, channel: int, stream: str = "stdout") -> bytes:
    frames = [frame for frame in host.stored[channel] if frame["t"] == "command.output" and frame["stream"] == stream]
    return b"".join(base64.b64decode(frame["data"]) for frame in frames)


def lost(host: Host, channel: int) -> int:
    return sum(frame.get("lost", 0) for frame in host.stored[channel] if frame["t"] == "command.output")


async def test_a_program_gets_its_arguments_environment_folder_and_stdin_and_ends_with_its_code(host: Host, tmp_path: Path) -> None:
    """[C8]: bytes stay bytes, on both streams."""
    code = """
import os, sys
sys.stdout.buffer.write(b"\\xff\\x00" + sys.stdin.buffer.read()[::-1])
sys.stderr.write(" ".join([sys.argv[1], os.environ["COLOUR"], os.getcwd()]))
sys.exit(7)
"""
    data = bytes(range(256)) * 4096
    run(host, 1, *python(code), "an argument", stdin=data, env={"COLOUR": "green"}, cwd=str(tmp_path))
    assert (await host.seen(0, "scope.exited", channel=1))["code"] == 7
    assert output(host, 1) == b"\xff\x00" + data[::-1]
    assert output(host, 1, "stderr").decode() == f"an argument green {tmp_path}"


LIBC_OWN = 1 << 31 | 1 << 32
"""Signals 32 and 33, which the C library keeps for itself: no program can change what it inherits of them."""


async def test_a_program_begins_with_signals_as_the_system_gives_them_and_no_descriptor_of_ours(host: Host) -> None:
    code = """
import os, signal, sys
masks = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if line.startswith("Sig"))
print(sorted(map(int, os.listdir("/proc/self/fd")))[:3], len(os.listdir("/proc/self/fd")), os.getpid() == os.getpgid(0) == os.getsid(0))
print(masks["SigBlk"])
"""
    run(host, 1, "sh", "-c", "grep SigIgn /proc/self/status; kill -0 $$; exec 3<&- ; ls /proc/self/fd")
    await host.seen(0, "scope.exited", channel=1)
    first, *descriptors = output(host, 1).decode().split("\n")
    ignored = int(first.removeprefix("SigIgn:\t"), 16)
    assert ignored & ~LIBC_OWN == 0
    assert set(descriptors) - {""} == {"0", "1", "2", "3"}  # 3 is the listing's own
    run(host, 2, *python(code))
    await host.seen(0, "scope.exited", channel=2)
    assert output(host, 2).decode().split("\n")[:2] == ["[0, 1, 2] 4 True", "0000000000000000"]


@pytest.mark.parametrize(
    ("argv", "members", "code", "told"),
    [
        (("no-such-program",), {}, 127, "no-such-program: No such file"),
        (("/etc/passwd",), {}, 126, "/etc/passwd"),
        (("true",), {"cwd": "/no/such/folder"}, 125, "/no/such/folder"),
        (("true",), {"user": "nobody-of-that-name"}, 125, "nobody-of-that-name"),
    ],
)
async def test_what_cannot_be_started_says_so_and_ends_as_a_shell_would(
    host: Host, argv: tuple[str, ...], members: dict[str, Any], code: int, told: str
) -> None:
    run(host, 1, *argv, **members)
    assert (await host.seen(0, "scope.exited", channel=1))["code"] == code
    assert told in output(host, 1, "stderr").decode()


async def test_a_stop_reaches_the_whole_group_and_what_catches_it_ends_in_its_own_way(host: Host) -> None:
    run(host, 1, "sh", "-c", "trap 'echo caught; exit 3' TERM; sleep 1000 & echo ready; wait")
    await host.until(lambda: output(host, 1) == b"ready\n", "the shell waits")
    host.say(1, {"t": "command.stop", "seconds": 10})
    host.say(1, {"t": "command.stop", "seconds": 10})
    assert (await host.seen(0, "scope.exited", channel=1))["code"] == 3
    assert output(host, 1) == b"ready\ncaught\n"


async def test_who_ignores_a_stop_is_killed_with_its_daemons_when_its_time_is_over(host: Host) -> None:
    """[C3]: also what double-forked into a session of its own."""
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(1000)
"""
    run(host, 1, *python(code))
    await host.until(lambda: output(host, 1).endswith(b"\n"), "the daemon is there")
    host.say(1, {"t": "command.stop", "seconds": 0.05})
    assert (await host.seen(0, "scope.exited", channel=1))["signal"] == signal.SIGKILL
    assert not os.path.exists(f"/proc/{int(output(host, 1))}")


async def test_a_program_whose_time_is_over_is_ended_by_the_supervisor_alone(host: Host) -> None:
    run(host, 1, "sleep", "1000", timeout_ms=50)
    assert (await host.seen(0, "scope.exited", channel=1))["signal"] == signal.SIGTERM
    assert host.kinds(1) == ["command.timed_out"]


async def test_output_is_stored_once_and_in_order_however_often_the_stream_is_cut(host: Host) -> None:
    """I6: what isn't acknowledged comes again, under its number."""
    run(host, 1, *python("for n in range(20000): print(n)"))
    for part in (1000, 5000, 12000):
        await host.until(lambda part=part: f"\n{part}\n".encode() in output(host, 1), "more came")
        host.cut()
    await host.seen(0, "scope.exited", channel=1)
    assert output(host, 1).decode().split() == [str(number) for number in range(20000)]


async def test_a_host_that_stores_nothing_makes_the_program_wait_and_loses_nothing(host: Host) -> None:
    size = 3 * KEPT_BYTES
    host.acknowledging = False
    run(host, 1, *python(f"import sys; sys.stdout.write('x' * {size}); sys.stdout.flush(); sys.stderr.write('done')"))
    await host.until(lambda: len(output(host, 1)) > KEPT_BYTES // 2, "as much as is kept")
    assert output(host, 1, "stderr") == b""
    host.acknowledging = True
    host.attach()
    await host.seen(0, "scope.exited", channel=1)
    assert len(output(host, 1)) == size and lost(host, 1) == 0


async def test_while_the_host_is_away_the_program_goes_on_and_what_is_dropped_is_counted(host: Host, tmp_path: Path) -> None:
    """[C8]: gaps are explicit."""
    size, begun, done = 3 * KEPT_BYTES, tmp_path / "begun", tmp_path / "done"
    os.mkfifo(begun)
    os.mkfifo(done)
    code = f"""
import sys
open({str(begun)!r}).close()
sys.stdout.write("x" * {size}); sys.stdout.flush()
open({str(done)!r}, "w").close()
"""
    run(host, 1, *python(code))
    await host.seen(0, "scope.started", channel=1)
    host.attaching = False
    host.cut()
    begun.open("w").close()
    await asyncio.to_thread(done.read_bytes)  # the program has come so far
    host.attaching = True
    host.attach()
    await host.seen(0, "scope.exited", channel=1)
    assert lost(host, 1) > 0 and len(output(host, 1)) + lost(host, 1) == size


async def test_a_start_that_is_sent_again_starts_nothing_again(host: Host, tmp_path: Path) -> None:
    """I5."""
    argv = ("sh", "-c", f"cat >> {tmp_path}/count")
    run(host, 1, *argv, stdin=b"once\n")
    run(host, 1, *argv, stdin=b"once\n")
    await host.seen(0, "scope.exited", channel=1)
    run(host, 1, *argv, stdin=b"once\n")
    run(host, 2, "true")
    await host.seen(0, "scope.exited", channel=2)
    assert (tmp_path / "count").read_text() == "once\n"
    assert json.dumps(host.said).count('"scope.failed"') == 0


async def test_a_supervisor_says_that_it_runs_while_a_command_does_and_a_command_is_nothing_in_flight(host: Host) -> None:
    """[C6], UD-15: the host asks every few seconds, whatever runs; it knows of Commands itself."""
    run(host, 1, *python("print('up', flush=True); import time; time.sleep(60)"))
    await host.seen(0, "scope.started", channel=1)
    host.say(0, {"t": "ping", "n": 77})
    assert "held" not in await host.seen(0, "pong", n=77)
    host.say(0, {"t": "scope.kill", "channel": 1})
    await host.seen(0, "scope.exited", channel=1)
