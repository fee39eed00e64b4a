"""The one connection of a process beside its pool: it listens, and holds the locks that mark leadership and the version of the code.

It is made again when it breaks; the locks that it held are gone then. It must reach PostgreSQL itself:
behind a pooler in transaction mode a listener hears nothing and a lock is anybody's, so each new connection sends itself a notice, and says
once, with the remedy, that it came back deaf. Everything goes on by polling meanwhile (I6, UD-82).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import structlog

from helmr.control.store.locks import CODE_VERSION
from helmr.control.store.pool import database_errors
from helmr.protocol.errors import DatabaseUnavailable

Receive = Callable[[str], None]
"""Called in the event loop with the payload of a notice."""

PROBE: Final = "helmr_probe"

log = structlog.get_logger("helmr.store")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingConfig:
    """Times in seconds."""

    dsn: str
    connect_seconds: float = 5.0
    probe_seconds: float = 2.0
    """How long the own notice may take before the connection counts as deaf."""
    check_seconds: float = 30.0
    """How often a silent connection is tried, since a broken network says nothing."""
    retry_seconds: tuple[float, float] = (0.05, 2.0)
    """First and longest pause between attempts to connect."""


class StandingConnection:
    """A Service. `listen` before `start`; `try_lock` and `unlock` at any time."""

    def __init__(self, config: StandingConfig, *, code_version: int = 0) -> None:
        self._config = config
        self._code_version = code_version
        self._receivers: dict[str, list[Receive]] = {}
        self._reconnected: list[Callable[[], None]] = []
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._using = asyncio.Lock()
        self._broken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.started = asyncio.Event()
        """Set while a connection is up."""
        self.deaf = False
        """Whether the last probe heard nothing."""

    def listen(self, channel: str, receive: Receive) -> None:
        """Call `receive` for each notice on `channel`. Any notice may be lost."""
        self._receivers.setdefault(channel, []).append(receive)

    def on_connected(self, call: Callable[[], None]) -> None:
        """Call after each connect: notices sent before it are lost, so look for yourself now."""
        self._reconnected.append(call)

    async def start(self) -> None:
        """Begin to connect, and go on for ever; returns at once."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep(), name="standing connection")

    async def stop(self) -> None:
        """Close the connection; its locks are free afterwards."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        self.started.clear()

    async def try_lock(self, kind: int, thing: int) -> bool:
        """Whether this process now holds the advisory lock (kind, thing), also if it held it before. Never waits for another holder."""
        return bool(await self._fetchval(_TRY_LOCK, kind, thing))

    async def unlock(self, kind: int, thing: int) -> None:
        """Give the lock back. One of a broken connection is free already."""
        try:
            await self._fetchval("SELECT pg_advisory_unlock($1, $2)", kind, thing)
        except DatabaseUnavailable:
            log.debug("the lock ended with its connection", kind=kind, thing=thing)

    async def _fetchval(self, query: str, *arguments: Any) -> Any:
        async with self._using:
            if self._connection is None:
                raise DatabaseUnavailable("The standing connection is down.")
            with database_errors():
                return await self._connection.fetchval(query, *arguments, timeout=self._config.connect_seconds)

    async def _keep(self) -> None:
        shortest, longest = self._config.retry_seconds
        pause = shortest
        while True:
            try:
                await self._connect()
                pause = shortest
                await self._watch()
            except (DatabaseUnavailable, asyncpg.PostgresError) as error:
                log.warning("the standing connection is down", error=str(error))
            finally:
                await self._drop()
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, longest)

    async def _connect(self) -> None:
        self._broken.clear()
        with database_errors():
            connection = await asyncpg.connect(
                self._config.dsn, timeout=self._config.connect_seconds, server_settings={"application_name": "helmr-standing"}
            )
            self._connection = connection
            connection.add_termination_listener(lambda _: self._broken.set())
            await connection.execute("SELECT pg_advisory_lock_shared($1, $2)", CODE_VERSION, self._code_version)
            for channel in self._receivers:
                await connection.add_listener(channel, self._dispatch)
            await self._probe(connection)
        self.started.set()
        for call in self._reconnected:
            call()

    async def _probe(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        token = uuid.uuid4().hex
        heard = asyncio.Event()

        def receive(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            if payload == token:
                heard.set()

        await connection.add_listener(PROBE, receive)
        await connection.execute("SELECT pg_notify($1, $2)", PROBE, token)
        try:
            async with asyncio.timeout(self._config.probe_seconds):
                await heard.wait()
        except TimeoutError:
            if not self.deaf:
                log.error(
                    "notices of the database don't arrive; work goes on by polling, slower",
                    remedy="connect to PostgreSQL itself, or by a pooler in session mode",
                )
            self.deaf = True
        else:
            self.deaf = False
        await connection.remove_listener(PROBE, receive)

    def _dispatch(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        for receive in self._receivers.get(channel, ()):
            receive(str(payload))

    async def _watch(self) -> None:
        """Until the connection breaks; a silent one is asked now and then."""
        while True:
            try:
                async with asyncio.timeout(self._config.check_seconds):
                    await self._broken.wait()
                raise DatabaseUnavailable("PostgreSQL closed the connection.")
            except TimeoutError:
                await self._fetchval("SELECT 1")

    async def _drop(self) -> None:
        self.started.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


_TRY_LOCK: Final = """
SELECT EXISTS (
    SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
    WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND datname = current_database() AND objsubid = 2
        AND classid::bigint = ($1::bigint & 4294967295) AND objid::bigint = ($2::bigint & 4294967295)
) OR pg_try_advisory_lock($1::integer, $2::integer)"""
