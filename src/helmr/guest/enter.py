"""From a forked copy of the zygote to a Session process: descriptors, user, environment, randomness, then the Agent's code."""

from __future__ import annotations

import gc
import io
import os
import pwd
import random
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from helmr.guest.kernel import set_process_name
from helmr.guest.launch import Launch
from helmr.guest.processes import SCOPE_VARIABLE
from helmr.guest.runtime.http_clients import count_requests
from helmr.guest.session import run_session

EXIT_SETUP_FAILED = 72


def enter_session(launch: Launch, connection: socket.socket, stdout: int, stderr: int) -> NoReturn:
    """Become the Session process; never returns. Its stdout and stderr are the pipes, its stdin is empty."""
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        os.setsid()
        set_process_name("helmr-session")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _set_environment(launch)
        become(launch.user)
        os.chdir(launch.cwd)
    except (OSError, KeyError, ValueError) as error:
        traceback.print_exception(error)
        os._exit(EXIT_SETUP_FAILED)
    for folder in reversed([folder for folder in launch.path if folder not in sys.path]):
        sys.path.insert(0, folder)
    sys.argv = ["helmr-session"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    _reseed()
    count_requests()
    gc.enable()
    sys.exit(run_session(connection))


def close_inherited(keep: set[int]) -> None:
    """Close every descriptor but the three standard ones and `keep`."""
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else map(str, range(256)):
        number = int(name)
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError:
                continue  # The descriptor of the listing itself.


def _set_environment(launch: Launch) -> None:
    os.environ.update(launch.env)
    os.environ[SCOPE_VARIABLE] = launch.scope


def become(user: str | None) -> None:
    """Take on `user`: a name or number, with `:group` if its own group isn't meant. Raises `KeyError` for an unknown one."""
    if user is None:
        return
    name, _, group = user.partition(":")
    if name.isdigit():
        uid, gid, home = int(name), int(name), "/"
        entry: Any = None
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            os.setgroups([])  # A number without a name is allowed, as in containers.
    else:
        entry = pwd.getpwnam(name)
        uid, gid, home = entry.pw_uid, entry.pw_gid, entry.pw_dir
    if entry is not None:
        gid, home = entry.pw_gid, entry.pw_dir
        os.initgroups(entry.pw_name, gid)
    if group:
        import grp

        gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    os.setgid(gid)
    os.setuid(uid)
    os.environ.setdefault("HOME", home)


def _reseed() -> None:
    """No two Session processes draw the same numbers, though they are copies of one zygote."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
