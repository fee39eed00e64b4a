"""From a forked copy of the zygote to the process that serves one stream. SPEC [C8]."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from helmr.guest.enter import become, close_inherited
from helmr.guest.kernel import set_process_name
from helmr.guest.launch import Launch
from helmr.guest.processes import SCOPE_VARIABLE
from helmr.guest.streams.channel import HungUp, StreamChannel
from helmr.guest.streams.files import PathRefused, serve_read, serve_write
from helmr.guest.streams.shell import serve_shell
from helmr.guest.streams.tunnel import PortRefused, serve_tunnel
from helmr.protocol.archive import ArchiveError
from helmr.protocol.streams import StreamError

_SERVE: Final[Mapping[str, Callable[[StreamChannel, Mapping[str, Any]], None]]] = MappingProxyType(
    {"shell": serve_shell, "read": serve_read, "write": serve_write, "forward": serve_tunnel}
)
_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


def enter_stream(launch: Launch, connection: socket.socket, stdout: int, stderr: int) -> NoReturn:
    """Serve a stream as the image's user, then end; never returns."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.setsid()
    close_inherited({connection.fileno()})
    set_process_name("helmr-stream")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.update(launch.env)
    os.environ[SCOPE_VARIABLE] = launch.scope
    channel = StreamChannel(connection)
    try:
        _serve(channel, launch)
        channel.finish()
    except HungUp:
        sys.exit(0)
    sys.exit(0)


def _serve(channel: StreamChannel, launch: Launch) -> None:
    try:
        become(launch.user)
        os.chdir(launch.cwd)
        opening = channel.take()
        if isinstance(opening, bytes) or opening["t"] != "open":
            raise StreamError("A stream begins with what it is for.")
        _SERVE[opening["kind"]](channel, opening)
    except OSError as error:
        code = "path_not_found" if error.errno in _MISSING else "path_refused"
        name = f"{error.filename}: " if isinstance(error.filename, str) else ""
        channel.say("failed", code=code, message=f"{name}{error.strerror or error}")
    except (PathRefused, ArchiveError) as error:
        channel.say("failed", code="path_refused", message=str(error))
    except PortRefused as error:
        channel.say("failed", code="port_refused", message=str(error))
    except (StreamError, KeyError, ValueError, json.JSONDecodeError) as error:
        channel.say("failed", code="stream_broken", message=f"{type(error).__name__}: {error}")
