"""Where pid 1 takes streams that the host passes in, for a sandbox out of which nobody can connect. DESIGN 6, I4.

A program that the host starts inside connects, says in a word what the stream is for, and passes it; one byte answers that it was taken.
Only such a program is heard: its parent is none of this Computer's processes.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final

from helmr.guest.polling import READ, running_guest_loop

_WAITING: Final = 16
_WORD: Final = 64
_CREDENTIALS: Final = 2
"""SCM_CREDENTIALS, which Python has no name for before 3.12."""
_SPACE: Final = socket.CMSG_SPACE(4 * 4) + socket.CMSG_SPACE(12)


class Door:
    """Listens at `path`. `take(word, stream)` gets each stream, and says whether it knows the word."""

    def __init__(self, path: str, take: Callable[[str, socket.socket], bool]) -> None:
        self._take = take
        self._loop = running_guest_loop()
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(_WAITING)
        self._listener.setblocking(False)
        self._guests: dict[int, socket.socket] = {}
        self._loop.attend(self._listener.fileno(), READ, self._accept)

    def _accept(self, events: int) -> None:
        try:
            guest, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        if len(self._guests) >= _WAITING:
            guest.close()
            return
        guest.setblocking(False)
        guest.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        number = guest.fileno()
        self._guests[number] = guest
        self._loop.attend(number, READ, lambda events: self._read(number))

    def _read(self, number: int) -> None:
        guest = self._guests.pop(number)
        self._loop.attend(number, 0, self._accept)
        with guest:
            passed, sender = array.array("i"), 0
            try:
                # Not `socket.recv_fds`, which leaves out the flag: what is spawned must not have the stream.
                data, ancillary, _, _ = guest.recvmsg(_WORD, _SPACE, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                return
            for _, kind, content in ancillary:
                if kind == socket.SCM_RIGHTS:
                    passed.frombytes(content[: len(content) - len(content) % 4])
                elif kind == _CREDENTIALS:
                    sender, _, _ = struct.unpack("3i", content)
            streams = [socket.socket(fileno=descriptor) for descriptor in passed]
            word = data.decode("ascii", "replace")
            if len(streams) == 1 and _is_hosts(sender) and self._take(word, streams[0]):
                _answer(guest)
                return
            print(f"helmr supervisor: {sender} passed {len(streams)} streams as {word!r}", file=sys.stderr, flush=True)
            for stream in streams:
                stream.close()


def _answer(guest: socket.socket) -> None:
    try:
        guest.send(b"+")
    except OSError:
        return  # it has been killed meanwhile; the stream is here


def _is_hosts(pid: int) -> bool:
    """Whether a process was started by the host: an orphan of this Computer is pid 1's child, or a keeper's.

    It told its own pid, as the kernel lets nobody else do; gVisor doesn't tell a socket's peer.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return pid > 1 and int(file.read().rpartition(b")")[2].split()[1]) == 0
    except (OSError, ValueError):
        return False
