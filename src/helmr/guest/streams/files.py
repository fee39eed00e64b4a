"""Files out of the Computer and into it, as its own processes see them: its kernel resolves links, permissions are its user's. [C8]"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import Mapping
from typing import Any, Final

from helmr.guest.streams.channel import StreamChannel
from helmr.protocol.archive import Copied, Unpacker, packed

_PIECE: Final = 256 * 1024


class PathRefused(Exception):
    """What the path names can't be copied so."""


def serve_read(channel: StreamChannel, opening: Mapping[str, Any]) -> None:
    """Say a file's bytes, or a tree as an archive. A path that is a link means what it leads to."""
    path, copied = os.path.realpath(opening["path"]), Copied()
    if opening["form"] == "tree":
        os.lstat(path)
        channel.say("ready")
        for piece in packed(path, copied):
            channel.put(piece)
    else:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise PathRefused(f"{opening['path']} is no file.")
            channel.say("ready", size=found.st_size, mode=stat.S_IMODE(found.st_mode))
            while data := file.read(_PIECE):
                channel.put(data)
                copied.bytes += len(data)
        copied.entries = 1
    channel.say("eof")
    _done(channel, copied)


def serve_write(channel: StreamChannel, opening: Mapping[str, Any]) -> None:
    """Take a file's bytes, or an archive. The file is written aside and put in its place once all has come; so is each file of a tree."""
    path: str = os.path.abspath(opening["path"])
    name: str | None = opening.get("name")
    if name is not None and os.path.isdir(path):
        path = os.path.join(os.path.realpath(path), name)
    if opening["form"] == "tree":
        folder, name = os.path.split(path)
        if not name or os.path.islink(path):
            folder, name = os.path.split(os.path.realpath(path))
        if not name:
            raise PathRefused("A tree can't be put in the place of /.")
        if not os.path.isdir(folder):
            raise FileNotFoundError(2, "No such folder", folder)
        channel.say("ready")
        source = _Incoming(channel)
        copied = Unpacker(folder, name, inside=False).unpack(io.BufferedReader(source, _PIECE))
        source.drain()
    else:
        copied = _write_file(channel, os.path.realpath(path), opening.get("mode"))
    _done(channel, copied)


def _write_file(channel: StreamChannel, path: str, mode: int | None) -> Copied:
    if os.path.isdir(path):
        raise PathRefused(f"{path} is a folder.")
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(6)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            with contextlib.suppress(FileNotFoundError):  # a new file has the mode that the umask leaves
                os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode) if mode is None else mode & 0o777)
            channel.say("ready")
            source, size = _Incoming(channel), 0
            while data := source.read(_PIECE):
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                size += len(data)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
    return Copied(entries=1, bytes=size)


def _done(channel: StreamChannel, copied: Copied) -> None:
    members: dict[str, Any] = {"left_out": copied.left_out, "more_left_out": copied.more_left_out} if copied.left_out else {}
    channel.say("done", bytes=copied.bytes, entries=copied.entries, **members)


class _Incoming(io.RawIOBase):
    """The other end's data as a file that ends with its `eof`, and only with that. Raises `HungUp`."""

    def __init__(self, channel: StreamChannel) -> None:
        self._channel = channel
        self._rest = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and not self._ended:
            message = self._channel.take()
            if isinstance(message, bytes):
                self._rest = memoryview(message)
            elif message["t"] == "eof":
                self._ended = True
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def drain(self) -> None:
        """Take what comes after the end of the archive, up to the end of the data."""
        while self.read(_PIECE):
            continue
