"""The spool: a folder through which manifests and packs pass between whoever walks trees and whoever has the object store.

hostd writes and reads there with root's rights, in a folder of an unprivileged worker. So everything goes through the open folder, never
through its path, follows no link, and touches only files of that worker.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from helmr.objects.saves.manifest import digest
from helmr.objects.store import check_digest
from helmr.protocol.errors import SaveDamaged, SpoolUnsafe


class Spool:
    """An open spool. `owner` is the user whose worker it is; None: this process's own, whose rights it doesn't exceed."""

    def __init__(self, folder: Path, *, owner: int | None = None) -> None:
        """Raises `SpoolUnsafe` for a folder that isn't the owner's, or that others may write to."""
        try:
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise SpoolUnsafe(f"The spool folder {folder} can't be opened: {error.strerror}.") from error
        self._owner = owner
        found = os.fstat(self._folder)
        if owner is not None and (found.st_uid not in (0, owner) or found.st_mode & 0o022):
            self.close()
            raise SpoolUnsafe(f"The spool folder {folder} must belong to the worker, and nobody else may write to it.")

    def create(self) -> tuple[BinaryIO, str]:
        """A new file and its draft name, which `keep` or `discard` takes."""
        name = f".{secrets.token_hex(16)}.draft"
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._folder)
        if self._owner is not None and self._owner != os.geteuid():
            os.fchown(descriptor, self._owner, -1)
        return open(descriptor, "w+b", buffering=0), name

    def keep(self, draft: str, name: str) -> None:
        """Give the draft its name, whole."""
        check_digest(name)
        os.rename(draft, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def discard(self, draft: str) -> None:
        os.unlink(draft, dir_fd=self._folder)

    def put(self, data: bytes) -> str:
        """Store a whole file under the digest of its bytes, which is returned."""
        file, draft = self.create()
        try:
            with file:
                rest = memoryview(data)
                while rest:  # a disk that gets full takes a part first
                    rest = rest[file.write(rest) :]
        except BaseException:
            self.discard(draft)
            raise
        name = digest(data)
        self.keep(draft, name)
        return name

    def open(self, name: str) -> BinaryIO:
        """The file `name` for reading. Raises `SaveDamaged` when it isn't there or not the worker's own."""
        check_digest(name)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError as error:
            raise SaveDamaged(f"The spool has no {name}: {error.strerror}.") from error
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or (self._owner is not None and found.st_uid != self._owner):
            os.close(descriptor)
            raise SaveDamaged(f"The spool's {name} is no file of the worker.")
        return open(descriptor, "rb", buffering=0)

    def has(self, name: str) -> bool:
        check_digest(name)
        return name in os.listdir(self._folder)

    def read(self, name: str) -> bytes:
        """All of it, which has the digest that it is named by. Raises `SaveDamaged`."""
        with self.open(name) as file:
            data = file.read()
        if digest(data) != name:
            raise SaveDamaged(f"The bytes of {name} are others than its name says.")
        return data

    def close(self) -> None:
        os.close(self._folder)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
