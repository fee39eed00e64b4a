"""Databases for tests: one PostgreSQL that all test processes of a user share, one migrated template, one clone for each test.

The server lies in a folder in memory, else of the temporary folder, is started by the first process that wants it and stopped by the last
that leaves; one left behind by killed processes is used by the next. Nothing in it outlives a crash of the machine (`fsync` is off).
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg
from anyio.from_thread import BlockingPortal, start_blocking_portal

from helmr.control.store.known_types import KnowingConnection
from helmr.control.store.migrate import load, migrate
from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig
from helmr.protocol.errors import FolderUnusable
from helmr.testing import clock, renewal

_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "300", "autovacuum": "off"}
_BUILDING = 0x48454C10
_GONE = 2000
"""How many rows may have gone from a database that is used again: they still take space, which nobody clears."""
_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30
_numbers = itertools.count(1)


class DatabaseServer:
    """A context manager for synchronous callers: `clone()` and `empty()` return the address of a database of its own."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or tests_folder()
        self._postgres = EmbeddedPostgres(PostgresConfig(folder=self._folder / "postgres", settings=_SETTINGS))
        self._users = -1
        self._known: set[str] = set()
        self._idle: dict[bool, list[str]] = {False: [], True: []}
        self._gone: dict[str, int] = {}
        self._moving: set[str] = set()
        self._connections: dict[str, asyncpg.Connection[asyncpg.Record]] = {}
        self._portal: BlockingPortal
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    def __enter__(self) -> Self:
        _make_folder(self._folder)
        self._users = os.open(self._folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._loop = start_blocking_portal()
        self._portal = self._loop.__enter__()
        try:
            self._portal.call(self._start)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._portal.call(self._leave)
        self._loop.__exit__(None, None, None)
        os.close(self._users)

    def clone(self) -> str:
        """A new database, migrated to this version."""
        return self._portal.call(self._create, self._template)

    def borrow(self, *, moving: bool = False) -> str:
        """A migrated database without any rows; `moving`: its time can be moved (`helmr.testing.clock`). `give_back` it."""
        return self._portal.call(self._borrow, moving)

    def give_back(self, dsn: str) -> None:
        """Empty a borrowed database for the next one: far cheaper than another clone. Connections to it are cut."""
        self._portal.call(self._renew, dsn)

    def lends(self, dsn: str) -> bool:
        """Whether it is borrowed from here now."""
        return dsn in self._gone

    async def fetch(self, dsn: str, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """Ask a database from any event loop, on a connection that is kept for its next tests: what each of them asks is planned once."""

        async def ask() -> list[asyncpg.Record]:
            return await (await self._kept(dsn)).fetch(statement, *arguments)

        return await asyncio.wrap_future(self._portal.start_task_soon(ask))

    def empty(self) -> str:
        """A new database without any migration."""
        return self._portal.call(self._create, "template0")

    def drop(self, dsn: str) -> None:
        """Remove a database of `clone` or `empty`; connections to it are cut."""
        self._portal.call(self._drop, _name(dsn))

    async def _start(self) -> None:
        await self._postgres.start()
        self._connection = await asyncpg.connect(self._postgres.dsn("postgres"))
        await self._drop_leftovers()
        self._template = await self._make_template()

    @property
    def _admin(self) -> asyncpg.Connection[asyncpg.Record]:
        assert self._connection is not None
        return self._connection

    async def _leave(self) -> None:
        if self._connection is not None:
            for connection in self._connections.values():
                await connection.close()
            for dsn in (*self._idle[False], *self._idle[True]):
                await self._drop(_name(dsn))
            await self._connection.close()
        # Given back before it is asked for alone: of two that leave at once, one gets it.
        fcntl.flock(self._users, fcntl.LOCK_UN)
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._postgres.leave()
            return
        await self._postgres.stop()

    async def _borrow(self, moving: bool) -> str:
        if self._idle[moving]:
            return self._idle[moving].pop()
        dsn = await self._create(await self._clock_template() if moving else await self._renewable_template())
        self._gone[dsn] = 0
        if moving:
            self._moving.add(dsn)
            await self._admin.execute(f"ALTER DATABASE {_name(dsn)} SET search_path TO {clock.SEARCH_PATH}")
        return dsn

    async def _renew(self, dsn: str) -> None:
        moving = dsn in self._moving
        gone = await self._empty(dsn, moving)
        if gone is not None:
            self._gone[dsn] += gone
            if self._gone[dsn] < _GONE:
                self._idle[moving].append(dsn)
                return
        self._moving.discard(dsn)
        del self._gone[dsn]
        connection = self._connections.pop(dsn, None)
        if connection is not None:
            await connection.close()
        await self._drop(_name(dsn))

    async def _empty(self, dsn: str, moving: bool) -> int | None:
        """How many rows went; None unless it is as new."""
        connection = await self._kept(dsn)
        try:
            if moving:
                await connection.execute(clock.RESET)
            return await connection.fetchval(renewal.RENEW)
        except (asyncpg.UndefinedTableError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError):
            return None  # A table is gone, or a test cut all connections, this one too.

    async def _kept(self, dsn: str) -> asyncpg.Connection[asyncpg.Record]:
        """A connection that stays: one that is new to a catalog costs more than what is done on it."""
        if dsn not in self._connections or self._connections[dsn].is_closed():
            settings = {"plan_cache_mode": "force_generic_plan"}
            self._connections[dsn] = await asyncpg.connect(dsn, server_settings=settings, connection_class=KnowingConnection)
        return self._connections[dsn]

    async def _create(self, template: str) -> str:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        # Copying files costs a sixth of what logging each page of them does; the checkpoints that it asks for are nothing without fsync.
        await self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self._postgres.dsn(name)

    async def _drop(self, name: str) -> None:
        await self._admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    async def _make_template(self) -> str:
        """The template of these migrations."""
        migrations = load()
        content = "".join(f"{migration} {migration.digest}\n" for migration in migrations)

        async def fill(dsn: str) -> None:
            await migrate(dsn, migrations)

        return await self._made("template", content, "template0", fill)

    async def _renewable_template(self) -> str:
        """The same, able to be emptied."""
        return await self._made("renewed", self._template + renewal.INSTALL, self._template, _executing(renewal.INSTALL, renewal.FRESH))

    async def _clock_template(self) -> str:
        """The same, with a clock: made when the first test wants one."""
        content = self._template + clock.INSTALL + renewal.INSTALL
        return await self._made("moving", content, self._template, _executing(clock.INSTALL, renewal.INSTALL, renewal.FRESH))

    async def _made(self, kind: str, content: str, base: str, fill: Callable[[str], Awaitable[None]]) -> str:
        """A database that is named by what is in it: made aside under a lock, then renamed, so that nobody clones half of it."""
        name = f"{kind}_{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        if name in self._known:
            return name
        await self._admin.execute(f"SELECT pg_advisory_lock({_BUILDING})")
        try:
            if await self._admin.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name) is None:
                await self._admin.execute("DROP DATABASE IF EXISTS template_building WITH (FORCE)")
                await self._admin.execute(f"CREATE DATABASE template_building TEMPLATE {base}")
                await fill(self._postgres.dsn("template_building"))
                await self._admin.execute(f"ALTER DATABASE template_building RENAME TO {name}")
        finally:
            await self._admin.execute(f"SELECT pg_advisory_unlock({_BUILDING})")
        self._known.add(name)
        return name

    async def _drop_leftovers(self) -> None:
        """Databases of processes that are gone."""
        rows = await self._admin.fetch("SELECT datname FROM pg_database WHERE datname LIKE 'test\\_%'")
        for row in rows:
            if not _is_alive(int(row["datname"].split("_")[1])):
                await self._drop(row["datname"])


def memory_folder() -> Path:
    """Where a database of tests lies: in memory where there is room, else the temporary folder.

    A file system on a disk works longer at all the files that come and go than the server does.
    """
    roomy = os.path.ismount(_MEMORY) and os.access(_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(_MEMORY).total >= _ROOM
    return _MEMORY if roomy else Path(tempfile.gettempdir())


def tests_folder() -> Path:
    """What all test processes of this user share, made when it is missing. Raises `FolderUnusable` when it is another user's."""
    folder = memory_folder() / f"helmr-tests-{os.geteuid()}"
    _make_folder(folder)
    return folder


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o711)
    except FileExistsError:
        if folder.lstat().st_uid != os.geteuid():
            raise FolderUnusable(f"{folder} belongs to another user.") from None


def _executing(*statements: str) -> Callable[[str], Awaitable[None]]:
    async def fill(dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    return fill


def _name(dsn: str) -> str:
    return dsn.partition("?")[0].rpartition("/")[2]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
