"""What hostd runs inside a Computer by `runsc exec`: short programs of the worker's Python, which touch nothing of the guest's own code.

They import next to nothing, since each is a process start in a user-space kernel.
"""

from __future__ import annotations

from typing import Final

from helmr.host.sandbox.gvisor.bundle import GROUPS
from helmr.host.sandbox.interior import PYTHON_BINARY

DOOR: Final = "/run/helmr/door.sock"
"""Where the supervisor takes streams."""

_SEND: Final = """\
import _socket, posix, sys
s = _socket.socket(1, 1)
s.settimeout(10)
try:
    s.connect(sys.argv[1])
except OSError:
    sys.exit(3)
own = b"".join(n.to_bytes(4, sys.byteorder) for n in (posix.getpid(), 0, 0))
s.sendmsg([sys.argv[2].encode()], [(1, 1, b"\\7\\0\\0\\0"), (1, 2, own)])
sys.exit(s.recv(1) != b"+")
"""
NOT_YET: Final = 3
"""Exit code of `send`: nobody listens there."""
NOT_STARTED: Final = 128
"""Exit code of `runsc exec` when the sandbox runs no process yet."""

_END: Final = """\
import os, sys, time
folder, channel = sys.argv[1], sys.argv[2].encode()
ended = set()
def found():
    try:
        with open(folder + "/cgroup.procs") as f:
            pids = set(map(int, f.read().split()))
    except OSError:
        pids = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                with open("/proc/" + name + "/environ", "rb") as f:
                    environ = f.read().split(b"\\0")
                with open("/proc/" + name + "/stat", "rb") as f:
                    state = f.read().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if state in b"ZX":
                pids.discard(int(name))
            elif any(e.startswith(b"HELMR_SCOPE=") and e[12:].rpartition(b".")[2] == channel for e in environ):
                pids.add(int(name))
    return pids
for _ in range(400):
    left = found()
    if not left:
        break
    for pid in left:
        try:
            os.kill(pid, 9)
        except OSError:
            pass
    ended |= left
    time.sleep(0.005)
else:
    sys.exit(255)
try:
    os.rmdir(folder)
except OSError:
    pass
sys.exit(min(len(ended), 254))
"""


def send(what: str) -> tuple[str, ...]:
    """Hand its descriptor 7 to whoever listens at the door, saying what it is; 0 once that was taken."""
    return (PYTHON_BINARY, "-I", "-S", "-c", _SEND, DOOR, what)


def end_scope(channel: int) -> tuple[str, ...]:
    """Kill all of a scope; how many there were is the exit code, 255 for more than could be ended."""
    return (PYTHON_BINARY, "-I", "-S", "-c", _END, f"{GROUPS}/pids/scopes/{channel}", str(channel))
