"""Reading files into chunks."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from helmr.objects.saves.opening import settle
from helmr.protocol.limits import MIB

CHUNK_BYTES: Final = MIB
"""Fixed pieces: most files have one, and what grows at its end or changes in place, logs and databases, re-uses all others (ADR 7)."""
ATTEMPTS: Final = 3
"""How often a file is read that changes meanwhile."""
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Take = Callable[[bytes], bytes]
"""Stores a chunk and gives its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a file held. `found` is its stat before the read; `torn`: it changed each time it was read, so parts may be of two moments."""

    found: os.stat_result
    chunks: tuple[bytes, ...]
    extents: tuple[tuple[int, int], ...] | None
    size: int
    torn: bool


class NotRegular(Exception):
    """The name is no regular file any more."""


def open_file(folder: int, name: str) -> int:
    """A descriptor of a regular file, without following a link, waiting for a pipe, or touching its access time.

    Raises `OSError`, and `NotRegular`.
    """
    try:
        file = os.open(name, _READ_FLAGS | getattr(os, "O_NOATIME", 0), dir_fd=folder)
    except PermissionError:
        file = os.open(name, _READ_FLAGS, dir_fd=folder)  # only a file's owner and root may leave the access time alone
    except BlockingIOError:
        return _open_leased(folder, name)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotRegular(name)
    return file


def _open_leased(folder: int, name: str) -> int:
    """Wait for a file on which somebody has a lease; the kernel takes that away after a while (`lease-break-time`, 45 s)."""
    there = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(there).st_mode):
            raise NotRegular(name)
        return os.open(f"/proc/self/fd/{there}", os.O_RDONLY | os.O_CLOEXEC)  # the file that was looked at, no other
    finally:
        os.close(there)


def read_content(file: int, take: Take) -> Content:
    """Read an open file to the end, again while it changes. Raises `OSError`."""
    for _ in range(ATTEMPTS - 1):
        content = _read_once(file, take)
        if not content.torn:
            return content
    return _read_once(file, take)


def _read_once(file: int, take: Take) -> Content:
    settle(file)
    before = os.fstat(file)
    sparse = before.st_blocks * 512 < before.st_size
    wanted = tuple(_extents(file, before.st_size)) if sparse else ((0, before.st_size),)
    chunks: list[bytes] = []
    got = tuple((offset, sum(_taken(file, offset, length, take, chunks))) for offset, length in wanted)
    after = os.fstat(file)
    unchanged = (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (after.st_size, after.st_mtime_ns, after.st_ctime_ns)
    # One that was cut while it was read is as long as what was got.
    size = before.st_size if got == wanted else max((offset + length for offset, length in got), default=0)
    torn = not unchanged or got != wanted
    return Content(found=before, chunks=tuple(chunks), extents=got if sparse else None, size=size, torn=torn)


def _taken(file: int, offset: int, length: int, take: Take, chunks: list[bytes]) -> Iterator[int]:
    """Store the pieces of an extent; the length of each."""
    for piece in _pieces(file, offset, length):
        chunks.append(take(piece))
        yield len(piece)


def _extents(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Where data is; the rest are holes."""
    position = 0
    while position < size:
        try:
            start = os.lseek(file, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        if start >= end:
            return
        yield start, end - start
        position = end


def _pieces(file: int, offset: int, length: int) -> Iterator[bytes]:
    end = offset + length
    while offset < end:
        wanted = min(CHUNK_BYTES, end - offset)
        piece = os.pread(file, wanted, offset)
        while piece and len(piece) < wanted and (more := os.pread(file, wanted - len(piece), offset + len(piece))):
            piece += more
        if not piece:
            return
        yield piece
        offset += len(piece)
