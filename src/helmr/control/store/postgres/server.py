"""An embedded PostgreSQL: initialised, started, found again and stopped by us, reachable by a unix socket only.

It is an ordinary server process that outlives a kill -9 of ours; the next `start` finds it by its pid file and uses it. After a crash of
its own it recovers by its log. Nothing else of Helmr knows that the database is embedded: they get an address (`dsn`). [D4]
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import asyncpg

from helmr.control.store.pool import database_errors
from helmr.control.store.postgres import passwd, postmaster
from helmr.control.store.postgres.account import SYSTEM_FOLDER, Account, account_of, nobody, place_for, places_of
from helmr.control.store.postgres.binaries import Binaries, find
from helmr.protocol.errors import DatabaseUnavailable, FolderUnusable, PostgresFailed

USER: Final = "helmr"
DATABASE: Final = "helmr"
_SOCKET_NAME_BYTES: Final = 100
_LOG_BYTES: Final = 8 << 20

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "64",
    "shared_buffers": "64MB",
    "min_wal_size": "64MB",
    "max_wal_size": "512MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}
"""What differs from PostgreSQL's defaults. Commits reach the disk (`fsync`, `synchronous_commit` stay on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresConfig:
    """Where the database lives and how long its steps may take (seconds)."""

    folder: Path
    """Data, log and socket. As root, moved below `system` when the account of PostgreSQL can't enter the parent of this folder."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Over `SETTINGS`."""
    system: Path = SYSTEM_FOLDER
    start_seconds: float = 60.0
    recovery_seconds: float = 600.0
    """How long a server that reports progress in its recovery may take."""
    stop_seconds: float = 30.0


class EmbeddedPostgres:
    """A Service. `start` is idempotent, `stop` too; `adopted` tells whether `start` found a running server."""

    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self.adopted = False

    @property
    def folder(self) -> Path:
        """Where the database really is; after `start`."""
        if self._folder is None:
            raise RuntimeError("PostgreSQL was not started")
        return self._folder

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def socket_folder(self) -> Path:
        """A short path, since the system bounds the length of a socket's name."""
        inside = self.folder / "run"
        if len(os.fsencode(inside)) <= _SOCKET_NAME_BYTES - len("/.s.PGSQL.5432"):
            return inside
        status = self.folder.stat()
        return Path(tempfile.gettempdir()) / f"helmr-postgres-{status.st_dev:x}-{status.st_ino:x}"

    def dsn(self, database: str = DATABASE) -> str:
        """The address of a database of this server."""
        return f"postgresql://{USER}@/{quote(database, safe='')}?host={quote(str(self.socket_folder), safe='')}"

    async def start(self) -> str:
        """Find or start the server, make the database, and return its address.

        Raises `PostgresMissing`, `PostgresVersionMismatch`, `FolderUnusable` or `PostgresFailed`.
        """
        while True:
            await asyncio.to_thread(self._start)
            try:
                with database_errors():
                    await self._make_database()
                return self.dsn()
            except DatabaseUnavailable as error:
                if not self.adopted:
                    raise PostgresFailed(f"PostgreSQL started and then refused us; see {self.log}.") from error
            # What we found was on its way out, killed or told to stop by somebody else.
            await asyncio.to_thread(self._wait_for_its_end)

    async def wait_ended(self) -> None:
        """Return when no server process runs on the folder any more, whoever ended it; after `start`."""
        running = postmaster.read(self.data)
        if running is not None:
            await running.gone()

    async def stop(self) -> None:
        """End the server, its clients disconnected, everything on disk. Returns when its process is gone."""
        await asyncio.to_thread(self._stop)

    def leave(self) -> None:
        """Let the server run on for others that use it: this process will neither stop it nor wait for it."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.returncode = 0  # else Popen warns of a child that nobody waited for

    async def stop_leftover(self) -> bool:
        """End a server that an earlier process left on this folder; whether there was one."""
        return await asyncio.to_thread(self._stop_leftover)

    async def _make_database(self) -> None:
        connection = await asyncpg.connect(self.dsn("postgres"))
        try:
            if await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE) is None:
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        except (asyncpg.DuplicateDatabaseError, asyncpg.UniqueViolationError):
            pass  # Another process that started at the same time has made it.
        finally:
            await connection.close()

    def _start(self) -> None:
        account = account_of(self._config.folder)
        self._folder = place_for(self._config.folder, account, self._config.system)
        account = account_of(self._folder)
        account.make_folder(self._folder)
        if self._process is not None:
            self._process.poll()  # a killed child of ours must be reaped, else its pid still counts as a running server
        with _locked(self._folder):
            running = postmaster.read(self.data)
            if running is not None and running.is_alive():
                if not running.is_stopping:
                    self._wait_until_ready(None)
                    self.adopted = True
                    return
                running.wait(self._config.stop_seconds)
            elif running is not None and running.is_another_program():
                (self.data / "postmaster.pid").unlink()
            self.adopted = False
            account, binaries = self._initialise(account)
            self._launch(account, binaries)

    def _wait_for_its_end(self) -> None:
        running = postmaster.read(self.data)
        if running is not None and running.is_alive():
            running.wait(self._config.stop_seconds)

    def _initialise(self, account: Account) -> tuple[Account, Binaries]:
        cache = self._config.system / "postgres-programs"
        version = self.data / "PG_VERSION"
        if version.exists():
            return account, find(account, cache=cache, major=int(version.read_text()))
        binaries = find(account, cache=cache)
        done = self._initdb(account, binaries)
        if done.returncode == passwd.NO_NAMESPACE and account.uid is not None:
            account = nobody()
            shutil.rmtree(self.folder)
            account.make_folder(self.folder)
            done = self._initdb(account, binaries)
        if done.returncode != 0:
            raise PostgresFailed(f"initdb failed in {self.folder}: {_last_lines(done.stderr)}")
        (self.folder / "data.new").rename(self.data)
        return account, binaries

    def _initdb(self, account: Account, binaries: Binaries) -> subprocess.CompletedProcess[str]:
        """Make the files in a folder aside, so that a crash leaves no half database where one is looked for."""
        aside = self.folder / "data.new"
        if aside.exists():
            shutil.rmtree(aside)
        command = [str(binaries.initdb), "--pgdata", str(aside), "--username", USER, "--encoding", "UTF8", "--locale", "C"]
        command += ["--auth-local", "trust", "--auth-host", "scram-sha-256", "--data-checksums", "--no-instructions"]
        if account.is_listed:
            return account.run(command)
        uid, gid = (os.geteuid(), os.getegid()) if account.uid is None else (account.uid, account.gid)
        return Account().run([sys.executable, "-I", passwd.__file__, str(uid), str(gid), *command])

    def _launch(self, account: Account, binaries: Binaries) -> None:
        """Start the server and wait for it; a predecessor that was killed may need a moment until its last process is gone."""
        account.make_folder(self.socket_folder)
        settings = {**SETTINGS, **self._config.settings, "unix_socket_directories": str(self.socket_folder)}
        deadline = time.monotonic() + self._config.start_seconds
        while True:
            start = self._open_log(account)
            with self.log.open("ab") as log:
                command = [str(binaries.postgres), "-D", str(self.data), *(f"--{name}={value}" for name, value in settings.items())]
                process = account.spawn(command, log=log)
            self._process = process
            try:
                self._wait_until_ready(process)
                return
            except PostgresFailed:
                said = self._said_since(start)
                if "pre-existing shared memory block" in said and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                if process.poll() is None:
                    raise
                raise PostgresFailed(f"PostgreSQL did not start ({shlex.quote(str(self.log))}): {_last_lines(said)}") from None

    def _wait_until_ready(self, process: subprocess.Popen[bytes] | None) -> None:
        """Until the pid file says so: it is the only signal that PostgreSQL gives to others than systemd."""
        started = time.monotonic()
        while True:
            if process is not None and process.poll() is not None:
                raise PostgresFailed(f"PostgreSQL ended with status {process.returncode}.")
            found = postmaster.read(self.data)
            if found is not None and (process is None or found.pid == process.pid):
                if found.is_ready:
                    return
                if process is None and not found.is_alive():
                    raise PostgresFailed("PostgreSQL ended while we waited for it.")
            waited = time.monotonic() - started
            if waited > (self._config.recovery_seconds if found is not None else self._config.start_seconds):
                raise PostgresFailed(f"PostgreSQL is not ready after {waited:.0f} s; see {self.log}.")
            time.sleep(0.01)

    def _stop(self) -> None:
        if self._folder is None:
            return
        with _locked(self._folder):
            running = postmaster.read(self.data)
            if running is not None and running.is_alive():
                running.end(self._config.stop_seconds)
        if self._process is not None:
            self._process.wait(self._config.stop_seconds)
            self._process = None

    def _stop_leftover(self) -> bool:
        self._folder = next((folder for folder in places_of(self._config.folder, self._config.system) if (folder / "data").is_dir()), None)
        running = None if self._folder is None else postmaster.read(self.data)
        if running is None or not running.is_alive():
            return False
        self._stop()
        return True

    def _open_log(self, account: Account) -> int:
        """Make the log, or begin a new one when it has grown; returns its length."""
        try:
            if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
                self.log.rename(self.log.with_suffix(".log.1"))
            self.log.touch(mode=0o600)
            if account.uid is not None:
                os.chown(self.log, account.uid, account.gid or account.uid)
            return self.log.stat().st_size
        except OSError as error:
            raise FolderUnusable(f"{self.log} can't be written: {error.strerror}.") from error

    def _said_since(self, start: int) -> str:
        with self.log.open("rb") as file:
            file.seek(start)
            return file.read(64 << 10).decode(errors="replace")


def _last_lines(text: str, count: int = 4) -> str:
    return "; ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """One process at a time starts or stops the server of a folder; the system releases the lock of a killed one."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FolderUnusable(f"{folder} can't be written: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
