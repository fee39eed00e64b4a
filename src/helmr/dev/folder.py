"""The data folder of a `helmr dev`: where everything of it is kept, who holds it, and its API key. [D4]"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from helmr.control.service.principals import KEY_PREFIX
from helmr.control.store.postgres.account import SYSTEM_FOLDER
from helmr.protocol.errors import AlreadyRunning, FolderUnusable


def default_folder(project: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Outside the source tree, one for each project: below XDG_STATE_HOME, or, for root, below /var/lib/helmr.

    Root's home is private, and neither PostgreSQL's account nor a Computer's users could enter it.
    """
    root = project.resolve()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name) or "project"
    leaf = f"{name}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:8]}"
    chosen = environ.get("XDG_STATE_HOME", "")
    if chosen.startswith("/"):
        return Path(chosen) / "helmr" / "dev" / leaf
    if os.geteuid() == 0:
        return SYSTEM_FOLDER / "dev" / leaf
    return Path(environ.get("HOME") or Path.home()) / ".local" / "state" / "helmr" / "dev" / leaf


class DataFolder:
    """`path` need not exist before `hold`."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path.absolute()

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def blobs(self) -> Path:
        return self.path / "blobs"

    @property
    def host(self) -> Path:
        """hostd's state."""
        return self.path / "host"

    @property
    def worker(self) -> Path:
        return self.path / "worker"

    @property
    def log(self) -> Path:
        """What our own process has to say to its maintainers."""
        return self.path / "helmr.log"

    @contextmanager
    def hold(self) -> Generator[None]:
        """Make the folder and keep it for this process. Raises `AlreadyRunning` or `FolderUnusable`.

        A killed process holds nothing: the system releases the lock.
        """
        try:
            _make(self.path)
            for private in (self.blobs, self.worker):
                _make_private(private)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FolderUnusable(
                f"{error.filename} can't be made or written: {error.strerror}.", hint="Choose another --data-dir."
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 32).decode(errors="replace").strip()
                raise AlreadyRunning(
                    f"A helmr dev (pid {holder or 'unknown'}) uses {self.path}.", hint="End it with Ctrl-C, or choose another --data-dir."
                ) from None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def open_log(self) -> TextIO:
        """The log, to write at its end; it names what Agents and callers sent, so this user alone reads it."""
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", buffering=1)

    def api_key(self) -> str:
        """The key of this folder's Environment: made once, readable by this user alone, the same after a restart."""
        file = self.path / "key"
        try:
            return file.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            token = KEY_PREFIX + secrets.token_urlsafe(32)
        draft = self.path / f"key.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as writing:
            writing.write(token)
            writing.flush()
            os.fsync(writing.fileno())
        draft.rename(file)
        return token


def _make(folder: Path) -> None:
    """Make `folder` and what is missing above it. Others may pass, since the database's account must, and see nothing."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)


def _make_private(folder: Path) -> None:
    """A folder for this user alone, also when an earlier version, or somebody else, made it for all."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
