"""A zygote: imports what Session processes share, then forks them. DESIGN 6.

One per bundle and preload list. No event loop and no thread of it lives when it forks, since neither survives a fork. It waits blocking:
messages from the supervisor on descriptor 0 (a SOCK_SEQPACKET socket), and dead children by a wake-up descriptor.
"""

from __future__ import annotations

import argparse
import array
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn

from helmr.guest.enter import close_inherited
from helmr.guest.keeper import keep_scope
from helmr.guest.kernel import set_process_name
from helmr.guest.processes import threads, threads_left
from helmr.guest.warmup import run_warmup

SHARED = ("helmr.sdk.agent", "helmr.sdk.image", "helmr.sdk.question", "helmr.sdk.template", "random", "subprocess")
"""What every Agent imports: once here, then shared by all Session processes."""

_MESSAGE_BYTES = 4096
_DESCRIPTORS = 3


def main() -> NoReturn:
    """Entry point of the process; ends with the supervisor's socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--preload", action="append", default=[])
    options = parser.parse_args()
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    set_process_name("helmr-zygote")
    sys.path[:0] = [folder for folder in options.path if folder not in sys.path]
    for name in SHARED:
        importlib.import_module(name)
    run_warmup()
    unfit = _preload(options.preload)
    gc.collect()
    gc.freeze()
    gc.disable()
    _say(control, {"ready": os.getpid(), "unfit": unfit})
    if unfit is not None:
        sys.exit(0)
    _serve(control)


def _preload(names: list[str]) -> str | None:
    """Import what Session processes share; returns why they can't be forked from here, or None."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - the user's module, whatever it raises; Session processes import it again and report
            traceback.print_exc()
            return f"preloading {name} failed: {type(error).__name__}: {error}"
    count = threads_left()
    return f"preloading left {count} threads" if count > 1 else None


def _serve(control: socket.socket) -> NoReturn:
    waker, woken = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _woken)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(waker, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == waker.fileno():
                waker.recv(4096)
                _reap(control)
            else:
                _take(control)


def _woken(number: int, frame: object) -> None:
    """SIGCHLD needs a handler, else it writes no byte to the wake-up descriptor."""


def _take(control: socket.socket) -> None:
    data, ancillary, _, _ = control.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(_DESCRIPTORS * 4))
    if not data:
        sys.exit(0)
    descriptors = array.array("i")
    for _, _, passed in ancillary:
        descriptors.frombytes(passed)
    message = json.loads(data)
    if "quit" in message:
        sys.exit(0)
    channel = message["start"]
    count = threads()
    if count > 1:
        _say(control, {"refused": channel, "message": f"the zygote has {count} threads"})
    else:
        _fork(control, channel, list(descriptors))
    for descriptor in descriptors:
        os.close(descriptor)


def _fork(control: socket.socket, channel: int, descriptors: list[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        _say(control, {"failed": channel, "message": f"No process could be forked: {error}."})
        return
    if pid:
        _say(control, {"forked": channel, "pid": pid})
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    close_inherited({control.fileno(), *descriptors})
    connection = socket.socket(fileno=descriptors[0])
    keep_scope(control, channel, connection, descriptors[1], descriptors[2])


def _reap(control: socket.socket) -> None:
    """Tell the supervisor of each keeper that ended; one that did so without a word was killed."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(control, {"reaped": pid, "status": status})


def _say(control: socket.socket, message: dict[str, object]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except OSError:
        sys.exit(0)  # The supervisor is gone.
