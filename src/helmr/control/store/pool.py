"""Connections to PostgreSQL: a bounded pool, transactions that retry deadlocks, and errors in our own words.

SPEC 11 (503 when the database is away), DESIGN I3, I6.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import asyncpg

from helmr.control.store.known_types import KnowingConnection
from helmr.protocol.errors import DatabaseUnavailable

T = TypeVar("T")
Connection = Any
"""An asyncpg connection, pooled or not; asyncpg's own types differ between the two."""

_AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what asyncpg says of a connection that is lost between two of its steps
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DiskFullError,
)
_WORDS: Final = (
    (asyncpg.DiskFullError, "its disk is full"),
    (asyncpg.TooManyConnectionsError, "it takes no more connections"),
    (asyncpg.CannotConnectNowError, "it is starting or ending"),
    ((asyncpg.AdminShutdownError, asyncpg.CrashShutdownError), "it ended"),
    (TimeoutError, "it does not answer in time"),
    ((asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError), "the connection was lost"),
)
_AGAIN: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_TRIES: Final = 5
_SETTINGS: Final = {"application_name": "helmr", "jit": "off", "plan_cache_mode": "force_generic_plan", "timezone": "UTC"}


async def _reset(connection: Any) -> None:
    """What a connection needs before others get it. No statement of ours leaves session state behind, so a round trip is spent only on a
    transaction that a cancelled task left open."""
    if connection.is_in_transaction():
        await connection.execute("ROLLBACK")


@contextmanager
def database_errors() -> Generator[None]:
    """Turn "the database is away" in any form into `DatabaseUnavailable`."""
    try:
        yield
    except asyncpg.DataError:
        # An InterfaceError by inheritance, but it says that a value can't be encoded: the caller's fault, not the database's.
        raise
    except _AWAY as error:
        raise DatabaseUnavailable(f"The database is away: {_why(error)}.") from error


def _why(error: BaseException) -> str:
    """In our own words, since callers read it: what a library says of its connection names its states, and where the database is."""
    return next((words for kind, words in _WORDS if isinstance(error, kind)), "it can't be reached")


class Database:
    """The database of an installation. Safe for any number of tasks; a task that waits for a connection holds none."""

    def __init__(self, dsn: str, *, size: int = 8, acquire_seconds: float = 10.0, command_seconds: float = 30.0) -> None:
        self.dsn = dsn
        self.deadlocks = 0
        """Transactions that were run again after a deadlock: each one is a bug in the lock order (I3)."""
        self._size = size
        self._acquire_seconds = acquire_seconds
        self._command_seconds = command_seconds
        self._pool: Any = None

    @property
    def size(self) -> int:
        """How many connections the pool has at most."""
        return self._size

    async def start(self) -> None:
        """Open the pool. Raises `DatabaseUnavailable`."""
        with database_errors():
            self._pool = await asyncpg.create_pool(
                self.dsn,
                min_size=1,
                max_size=self._size,
                command_timeout=self._command_seconds,
                reset=_reset,
                server_settings=_SETTINGS,
                connection_class=KnowingConnection,
            )

    async def stop(self) -> None:
        """Close every pooled connection; those still in use after 5 s are cut."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(5.0):
                await pool.close()
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pool.terminate()

    async def dedicated(self, **settings: str) -> Any:
        """A connection outside the pool, with the same settings and `settings`; the caller closes it. Raises `DatabaseUnavailable`."""
        with database_errors():
            return await asyncpg.connect(
                self.dsn, server_settings=_SETTINGS | settings, timeout=self._acquire_seconds, connection_class=KnowingConnection
            )

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """A pooled connection, for reads. Raises `DatabaseUnavailable`."""
        if self._pool is None:
            raise DatabaseUnavailable("The database is not connected.")
        with database_errors():
            async with self._pool.acquire(timeout=self._acquire_seconds) as connection:
                yield connection

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` in one transaction and commit it; after a deadlock, all of it again.

        Raises what `work` raises, after a rollback, and `DatabaseUnavailable` when the outcome is unknown.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                async with self.connection() as connection, connection.transaction():
                    return await work(connection)
            except _AGAIN:
                self.deadlocks += 1
                if attempt == _TRIES:
                    raise
        raise AssertionError("unreachable")
