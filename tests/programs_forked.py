"""The process that programs of tests are forked from: single-threaded, with all of Helmr imported and nothing of it begun.

Told on a socket (`programs.py`) what to start, it forks; the child takes the files, environment, folder and arguments that came along and
goes on as `python` does, at the first line of its module or script. The ends of children are told as they come.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import warnings
from typing import Any

import setproctitle

from helmr.plain_tracebacks import import_structlog

MODULES = (
    "helmr.server", "helmr.dev.app", "helmr.host.hostd.program", "helmr.host.worker.process", "helmr.cli.main", "helmr.client",
    "helmr.cli.local", "helmr.cli.session", "helmr.cli.turn", "helmr.cli.question", "helmr.cli.computer", "helmr.cli.deployment",
    "helmr.cli.command", "helmr.cli.controls", "helmr.cli.timeline", "helmr.publish.upload", "helmr.publish.project", "uvloop", "rich.live",
    "uvicorn.protocols.http.httptools_impl", "encodings.idna",
)  # fmt: skip
STATUS_BYTES = 1 << 20


def main() -> dict[str, Any]:
    """Serve until the other side is gone; returns in a child, with what it is to become."""
    link = socket.socket(fileno=int(sys.argv[1]))
    import_structlog()
    for module in MODULES:
        importlib.import_module(module)
    setproctitle.getproctitle()  # It finds its room in memory by an environment that nobody has changed yet.
    waking, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([link, waking], [], [])
        if waking in ready:
            os.read(waking, 4096)
            tell_ends(link)
        if link not in ready:
            continue
        message, files, _, _ = socket.recv_fds(link, STATUS_BYTES, 3)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            link.detach()
            return {**json.loads(message), "files": files, "unused": (int(sys.argv[1]), waking, woken)}
        for descriptor in files:
            os.close(descriptor)
        link.send(json.dumps({"started": pid}).encode())


def tell_ends(link: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        link.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def become(told: dict[str, Any]) -> None:
    """Be the program: nothing of the one that it was forked from is left, but what it has imported."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in told["unused"]:
        os.close(descriptor)
    if told["session"]:
        os.setsid()
    for number, descriptor in enumerate(told["files"]):
        os.dup2(descriptor, number)
    for descriptor in told["files"]:
        if descriptor > 2:
            os.close(descriptor)
    if told["terminal"]:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    _open_streams()
    argv: list[str] = told["argv"]
    setproctitle.setproctitle(" ".join([sys.executable, *argv]).encode(errors="replace").decode())
    sys.orig_argv = [sys.executable, *argv]
    while argv[0] == "-W":
        warnings.simplefilter(argv[1])  # type: ignore[arg-type]
        argv = argv[2:]
    paths = [path for path in told["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    if argv[0] == "-m":
        sys.path[:0] = [told["cwd"], *paths]
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [os.path.dirname(argv[0]), *paths]
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")


def _open_streams() -> None:
    """Standard streams as Python opens them."""
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False), encoding="utf-8", errors="surrogateescape")
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        raw = os.fdopen(number, "wb", closefd=False)
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=number == 2 or os.isatty(number))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    become(main())
