"""Files with values of Secrets, on their way to a launcher: in memory that no path leads to. SPEC [X1].

A launcher of ours reads them from a descriptor; an engine finds them in a folder of the host's memory, for the moment of the start. Each is
shown by a mount that ends with the sandbox. What is on the Computer's own disk is an empty file in its place.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import posixpath
import secrets
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from helmr.host.sandbox.plan import Bind
from helmr.host.sandbox.spawn import LaunchFailed
from helmr.protocol.handing import SecretFile
from helmr.protocol.secrets import RESERVED_FOLDERS

_MEMORY: Final = ("/run", "/dev/shm")
_LEAST: Final = 10
"""Above the descriptors that a launcher gets, so that none takes the place of another on the way."""


@contextmanager
def passed(files: Sequence[SecretFile]) -> Generator[int | None]:
    """A descriptor from which a launcher reads them; None when there are none. Raises `LaunchFailed` for a path where none can be."""
    for file in files:
        check_path(file.path)
    if not files:
        yield None
        return
    memory = os.memfd_create("handed")
    try:
        descriptor = fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, _LEAST)
    finally:
        os.close(memory)
    try:
        data = memoryview(marshal.dumps([(file.path, 0o444 if file.shared else 0o400, file.value.encode()) for file in files]))
        while data:
            data = data[os.write(descriptor, data) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def laid(files: Sequence[SecretFile], folder: str, owner: int) -> Generator[tuple[Bind, ...]]:
    """The same as files in a folder of the host's memory, of the id `owner`, gone when this is left: what shows them by then goes on to.

    Raises `LaunchFailed` also on a host without a file system in memory.
    """
    for file in files:
        check_path(file.path)
    if not files:
        yield ()
        return
    place = os.path.join(memory_folder(), folder, secrets.token_hex(8))
    os.makedirs(place, 0o700)
    try:
        binds: list[Bind] = []
        for number, file in enumerate(files):
            path = os.path.join(place, str(number))
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as writing:
                writing.write(file.value.encode())
                os.fchown(descriptor, owner, owner)
                os.fchmod(descriptor, 0o444 if file.shared else 0o400)
            binds.append(Bind(source=path, target=file.path))
        yield tuple(binds)
    finally:
        shutil.rmtree(place)


def forget(folder: str) -> None:
    """Remove what a hostd that was killed had laid there."""
    for memory in _MEMORY:
        shutil.rmtree(os.path.join(memory, folder), ignore_errors=True)


def memory_folder() -> str:
    """A folder of the host that is in memory. Raises `LaunchFailed` where there is none."""
    kinds: dict[str, str] = {}
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, place, kind, *_ = line.split()
            kinds[place] = kind
    for memory in _MEMORY:
        if kinds.get(memory) in ("tmpfs", "ramfs"):
            return memory
    raise LaunchFailed(f"This host has no file system in memory at {' or '.join(_MEMORY)}, so Secrets can't be files.")


def check_path(path: str) -> None:
    """Raise `LaunchFailed` for what is no path of a file of the Computer's own."""
    reserved = any(path == folder or path.startswith(f"{folder}/") for folder in RESERVED_FOLDERS)
    if not path.startswith("/") or path.endswith("/") or "\0" in path or posixpath.normpath(path) != path or reserved:
        raise LaunchFailed(f"A Secret can't be a file at {path[:200]!r}.")
