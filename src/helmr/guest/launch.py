"""What a new Session process or Command must know before it begins: one frame, ahead of all others.

It travels through the channel, since an environment may be larger than a message to the zygote can be.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from helmr.protocol.frames import HEADER

JOIN_SECONDS: Final = 10.0


class LaunchFailed(Exception):
    """The Session process could not be set up; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start one Session process. `scope` marks its processes, `host` is the socket of hostd (or empty). With `argv` it is a
    Command, whose `stdin` bytes follow the frame; with `stream` it serves a stream."""

    channel: int
    scope: str
    path: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: str | None
    host: str
    argv: tuple[str, ...] = ()
    stdin: int = 0
    stream: bool = False
    group: str = ""
    """Folder of its process group in the guest's own kernel; empty where the host groups it."""
    memory: int = 0
    """Bytes of data that each of its processes may have; 0: no limit of its own."""

    def encode(self) -> bytes:
        payload = json.dumps(asdict(self)).encode()
        return HEADER.pack(len(payload), 0, 0) + payload


def read_launch(connection: socket.socket) -> Launch:
    """Read the launch frame from the channel, blocking. Raises `LaunchFailed` when the supervisor has closed it."""
    length, _, _ = HEADER.unpack(_exactly(connection, HEADER.size))
    members: dict[str, Any] = json.loads(_exactly(connection, length))
    members["path"], members["argv"] = tuple(members["path"]), tuple(members["argv"])
    return Launch(**members)


def read_stdin(connection: socket.socket, size: int) -> int:
    """A file (its descriptor) of the bytes that follow the launch frame, at its beginning. Raises `LaunchFailed`, `OSError`."""
    descriptor = os.memfd_create("stdin")
    data = memoryview(_exactly(connection, size))
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def join_scope(launch: Launch) -> None:
    """Have hostd move this process into the cgroup of its scope, before any code of users runs. Raises `LaunchFailed`.

    Without a socket of hostd there is no cgroup to join, and nothing to do.
    """
    if not launch.host or not os.path.exists(launch.host):
        return
    try:
        with socket.socket(socket.AF_UNIX) as host:
            host.settimeout(JOIN_SECONDS)
            host.connect(launch.host)
            host.sendall(json.dumps({"hello": "scope", "channel": launch.channel}).encode() + b"\n")
            answer = host.recv(16)
    except OSError as error:
        raise LaunchFailed(f"The host did not take the scope: {error}.") from error
    if answer != b"ok\n":
        raise LaunchFailed("The host refused the scope.")


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise LaunchFailed("The supervisor closed the channel before the process had started.")
        data += more
    return bytes(data)
