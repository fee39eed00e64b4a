"""The keeper of a scope: a small process above a Session process. SPEC [C3].

It is what pid 1 is in a container: it joins the scope's cgroup, starts the Session process, adopts and reaps its orphans, and once the
Session process has ended it ends everything else of the scope before it says so. It runs no code of users. The Session process itself
can't do that: reaping foreign children there would take exit statuses from the Agent's own code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import NoReturn

from helmr.guest.enter import enter_session
from helmr.guest.execute import enter_command
from helmr.guest.groups import enter_group
from helmr.guest.kernel import become_subreaper, set_process_name
from helmr.guest.launch import LaunchFailed, join_scope, read_launch, read_stdin
from helmr.guest.processes import descendants, kill
from helmr.guest.streams.serving import enter_stream

_POLL_SECONDS = 0.02


def keep_scope(report: socket.socket, channel: int, connection: socket.socket, stdout: int, stderr: int) -> NoReturn:
    """Never returns: this process ends with its scope. `report` takes what the supervisor must know, one message each."""
    os.setsid()
    set_process_name("helmr-keeper")
    become_subreaper()
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        launch = read_launch(connection)
        join_scope(launch)
        enter_group(launch)
        stdin = read_stdin(connection, launch.stdin) if launch.argv else None
        if stdin is not None:
            # What tells a Command to stop before it has begun must not get lost: it waits until the program is there.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        session = os.fork()
    except (LaunchFailed, OSError) as error:
        full = isinstance(error, BlockingIOError)  # what the kernel says of a limit helps nobody
        message = "The Computer has as many processes as its Template allows." if full else str(error)
        _say(report, json.dumps({"failed": channel, "message": message}).encode())
        os._exit(1)
    if session == 0:
        report.close()
        if stdin is not None:
            connection.close()
            enter_command(launch, stdin, stdout, stderr)
        if launch.stream:
            enter_stream(launch, connection, stdout, stderr)
        enter_session(launch, connection, stdout, stderr)
    if stdin is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(stdin)
    connection.close()
    os.close(stdout)
    os.close(stderr)
    _say(report, b'{"started":%d,"pid":%d}' % (channel, session))
    status, ended = _keep(session)
    signalled = os.WIFSIGNALED(status)
    how = (b"signal", os.WTERMSIG(status)) if signalled else (b"code", os.WEXITSTATUS(status))
    _say(report, b'{"exited":%d,"ended":%d,"%b":%d}' % (channel, ended, *how))
    os._exit(0)


def _keep(session: int) -> tuple[int, int]:
    """Reap until the Session process has ended, then end the rest. Returns its wait status, and how many others were ended."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == session:
            return status, _end_rest()


def _end_rest() -> int:
    ended = 0
    while True:
        ended += kill(descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return ended
        signal.sigtimedwait({signal.SIGCHLD}, _POLL_SECONDS)


def _say(report: socket.socket, message: bytes) -> None:
    """Say it. JSON is written by hand where it can be: an encoder's pages would be one more copy for each keeper."""
    try:
        report.send(message)
    except OSError:
        os._exit(1)  # The supervisor is gone, and with it the Computer.
