"""Whose PostgreSQL it is: ours, or, since it refuses to run as root, that of an account without rights.

As root we take a uid that no user of the machine has. Only folders that we made get other owners
or permissions; a parent folder never does.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from helmr.protocol.errors import FolderUnusable

UNUSED: Final = range(65530, 65520, -1)
"""Outside what distributions, systemd and container engines give away."""

SYSTEM_FOLDER: Final = Path("/var/lib/helmr")
"""Where root keeps what the account must reach, when it can't reach the place that was asked for."""

ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
"""Nothing of ours: settings such as PGPORT or LC_ALL would change the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A uid and gid to run as, or None: as who we are."""

    uid: int | None = None
    gid: int | None = None

    def run(self, command: Sequence[str], *, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program under this account to its end. Raises `OSError` when it can't start."""
        return subprocess.run(
            command,
            cwd="/",
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            user=self.uid,
            group=self.gid,
            extra_groups=self._groups,
            umask=0o077,
        )

    def spawn(self, command: Sequence[str], *, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program under this account, apart from our terminal and our signals."""
        return subprocess.Popen(
            command,
            cwd="/",
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=self._groups,
            umask=0o077,
        )

    @property
    def _groups(self) -> list[str | int] | None:
        return None if self.uid is None else []

    @property
    def is_listed(self) -> bool:
        """Whether the machine's user list has it."""
        try:
            pwd.getpwuid(os.geteuid() if self.uid is None else self.uid)
        except KeyError:
            return False
        return True

    def can_run(self, program: Path) -> bool:
        """Whether the program starts under this account: found by starting it."""
        return self._succeeds([str(program), "--version"])

    def can_enter(self, folder: Path) -> bool:
        """Whether the account reaches `folder` through all its parents: found by entering it."""
        return self._succeeds(["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)])

    def make_folder(self, folder: Path) -> None:
        """Make `folder` for this account alone; its parent must exist. One that is there must be its own. Raises `FolderUnusable`."""
        owner = os.geteuid() if self.uid is None else self.uid
        try:
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                if folder.is_symlink() or folder.lstat().st_uid != owner:
                    raise FolderUnusable(f"{folder} belongs to another user.") from None
                return
            if self.uid is not None:
                os.chown(folder, self.uid, self.gid or self.uid)
        except OSError as error:
            raise FolderUnusable(f"{folder} can't be made or written: {error.strerror}.") from error

    def _succeeds(self, command: Sequence[str]) -> bool:
        try:
            return self.run(command, seconds=30).returncode == 0
        except OSError:
            return False


def account_of(data: Path) -> Account:
    """The account that owns the existing folder `data`, else the one for a new folder."""
    if os.geteuid() != 0:
        return Account()
    try:
        owner = data.stat()
    except (FileNotFoundError, NotADirectoryError):
        return unused_account()
    if owner.st_uid == 0:
        return unused_account()
    return Account(uid=owner.st_uid, gid=owner.st_gid)


def unused_account() -> Account:
    """The first uid of `UNUSED` that the user list lacks."""
    for uid in UNUSED:
        account = Account(uid=uid, gid=uid)
        if not account.is_listed:
            return account
    raise FolderUnusable("All uids set apart for PostgreSQL are taken by users of this machine.")


def nobody() -> Account:
    """The last resort, where an unlisted uid can't make a database: the machine's `nobody`."""
    entry = pwd.getpwnam("nobody")
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


def place_for(folder: Path, account: Account, system: Path = SYSTEM_FOLDER) -> Path:
    """`folder`, or a place of the same meaning below `system` when the account can't enter the folder's parent.

    The parent of the returned folder exists afterwards. Raises `FolderUnusable`.
    """
    try:
        _make_folders(folder.parent)
        if account.uid is None or account.can_enter(folder.parent):
            return folder
        _, instead = places_of(folder, system)
        _make_folders(instead.parent)
    except OSError as error:
        raise FolderUnusable(f"{error.filename} can't be made or written: {error.strerror}.") from error
    if not account.can_enter(instead.parent):
        raise FolderUnusable(f"The account of PostgreSQL (uid {account.uid}) can enter neither {folder.parent} nor {instead.parent}.")
    return instead


def places_of(folder: Path, system: Path = SYSTEM_FOLDER) -> tuple[Path, Path]:
    """The two places that `place_for` chooses from."""
    return folder, system / "postgres" / hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]


def _make_folders(folder: Path) -> None:
    """Make `folder` and what is missing above it so that others may pass, not look, whatever the umask; existing ones stay as they are."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
