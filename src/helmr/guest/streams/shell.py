"""A program on a terminal of its own, for a person elsewhere. SPEC [C8]."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from helmr.guest.execute import start_program
from helmr.guest.streams.channel import HungUp, StreamChannel
from helmr.guest.streams.pump import Pump

GRACE_SECONDS: Final = 3.0
"""What a shell has to end after its SIGHUP; then its whole scope is killed."""
DRAIN_SECONDS: Final = 1.0
"""How long the terminal of a shell that has ended is read, if something else keeps it open."""

_END_OF_INPUT: Final = b"\x04"
"""Ctrl-D, as a person would end it."""
_SHELLS: Final = ("/bin/bash", "/bin/sh")


def serve_shell(channel: StreamChannel, opening: Mapping[str, Any]) -> None:
    """Run the program until it ends or the client is gone. Job control, Ctrl-C and the like are the terminal's own doing."""
    argv: Sequence[str] = opening.get("argv") or [user_shell()]
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    ours, theirs = os.openpty()
    _resize(ours, opening)
    child = os.fork()
    if child == 0:
        _become_program(theirs, argv)
    os.close(theirs)
    channel.say("ready")
    pump = Pump(channel, ours, epilogue=_END_OF_INPUT, on_word=lambda said: _obey(ours, said))
    try:
        status = _run(pump, child, woken)
        _drain(pump)
    except HungUp:
        os.close(ours)  # which sends SIGHUP to whoever has the terminal
        _let_go(child)
        return
    channel.say("exit", **({"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}))


def user_shell() -> str:
    """The shell that the present user's entry names, if it can be run, else a common one."""
    with contextlib.suppress(KeyError):
        named = pwd.getpwuid(os.getuid()).pw_shell
        if named and os.access(named, os.X_OK) and os.path.basename(named) not in ("nologin", "false"):
            return named
    return next((path for path in _SHELLS if os.access(path, os.X_OK)), "sh")


def _become_program(terminal: int, argv: Sequence[str]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for place in range(3):
        os.dup2(terminal, place)
    start_program(argv)


def _run(pump: Pump, child: int, woken: socket.socket) -> int:
    """Pump until the program has ended; its wait status."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if pump.step(woken.fileno()):
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)


def _drain(pump: Pump) -> None:
    """Read what the terminal still holds: to its end, which comes at once unless something else has it open."""
    while pump.up_open:
        before, waited = pump.read_bytes, time.monotonic() + DRAIN_SECONDS
        while pump.hungry and pump.read_bytes == before:
            if time.monotonic() >= waited:
                return
            pump.step(seconds=max(0.0, waited - time.monotonic()))
        if pump.up_open and not pump.hungry:
            pump.step()


def _obey(terminal: int, said: Mapping[str, Any]) -> None:
    if said["t"] == "resize":
        _resize(terminal, said)


def _resize(terminal: int, said: Mapping[str, Any]) -> None:
    rows, columns = int(said.get("rows", 24)), int(said.get("columns", 80))
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _let_go(child: int) -> None:
    """Give the program its time to end; the keeper ends it otherwise, with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGHUP)
        os.kill(child, signal.SIGCONT)
    end = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < end and not os.waitpid(child, os.WNOHANG)[0]:
        select.select([], [], [], 0.02)
