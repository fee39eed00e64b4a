"""Memory of processes that stand still, sent to the host's swap where it has some [C6]. Linux.

What several processes share stays: a forked Session process takes along what it has written since, and no more.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

SECONDS: Final = 2.0
"""How long a Computer may be paged out: whoever wakes it waits for that."""
SPARED: Final = 64 << 20
"""Bytes of swap that are left to the host."""
_PIECE: Final = 16 << 20
_STAYS: Final = (errno.EINVAL, errno.EFAULT, errno.ENOMEM)
"""How the kernel refuses memory that is locked, a device's, or gone."""
_MADV_PAGEOUT: Final = 21
_PROCESS_MADVISE: Final = 440
"""The call's number on every architecture that has it."""


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


def free_swap(meminfo: str | None = None) -> int:
    """Bytes; 0 on a host without swap."""
    try:
        text = Path("/proc/meminfo").read_text() if meminfo is None else meminfo
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("SwapFree:")), 0)


def page_out(pids: Iterable[int], *, seconds: float = SECONDS, then: Callable[[], None] | None = None) -> int | None:
    """Bytes of frozen processes that are in swap since, as far as `seconds` and the swap allow. Blocks: call it in a thread.

    None where there is no swap for it, or where this user may not. `then` is called where all has gone in time: what is written to swap
    stays in memory, too, until somebody asks for it back.
    """
    if free_swap() <= SPARED:
        return None
    ends = time.monotonic() + seconds
    found = sorted(pids)
    before = sum(map(_swapped, found))
    for pid in found:
        try:
            if not _page_out(pid, ends):
                then = None
                break
        except PermissionError:
            return None
        except (ProcessLookupError, FileNotFoundError):
            continue  # it was killed, frozen as it was
    if then is not None:
        then()
    return max(0, sum(map(_swapped, found)) - before)


def _page_out(pid: int, ends: float) -> bool:
    """False when it is enough."""
    descriptor = os.pidfd_open(pid)
    try:
        for start, length in _pieces(Path(f"/proc/{pid}/maps").read_text()):
            if time.monotonic() >= ends or free_swap() <= SPARED:
                return False
            _advise(descriptor, start, length)
    finally:
        os.close(descriptor)
    return True


def _pieces(maps: str) -> Iterator[tuple[int, int]]:
    """What is its own to write: anonymous memory and private copies of files."""
    for line in maps.splitlines():
        words = line.split(maxsplit=5)
        if words[1][1] != "w" or words[1][3] != "p" or words[-1].startswith("[v"):
            continue
        start, end = (int(word, 16) for word in words[0].split("-"))
        for at in range(start, end, _PIECE):
            yield at, min(_PIECE, end - at)


def _advise(descriptor: int, start: int, length: int) -> None:
    piece = _Range(start, length)
    done = _call(_PROCESS_MADVISE, descriptor, ctypes.byref(piece), ctypes.c_size_t(1), _MADV_PAGEOUT, 0)
    if done < 0:
        number = ctypes.get_errno()
        if number not in _STAYS:
            raise OSError(number, os.strerror(number))


def _swapped(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmSwap:")), 0)


_library: Final = ctypes.CDLL(None, use_errno=True)
_call: Final = _library.syscall
