"""A control plane as a whole: it starts on a database, serves, survives the database's absence, and ends. SPEC 11, UD-85, UD-88."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from helmr.control.listener import Listener, ListenerConfig
from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig
from helmr.protocol.errors import ConfigurationMissing, DatabaseUnavailable
from helmr.server import Server, ServerConfig, listener_config
from helmr.testing.database import memory_folder

Bounded = Callable[[], AbstractAsyncContextManager[object]]
KEY = "hlmr_sk_" + "k" * 43


@asynccontextmanager
async def serving(dsn: str, blobs: Path, *, pool_size: int = 4) -> AsyncIterator[Server]:
    server = Server(ServerConfig(dsn=dsn, blobs=blobs, api_key=KEY, pool_size=pool_size), Listener(ListenerConfig()))
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def calling(server: Server, key: str = KEY) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {key}"}) as session:
        yield session


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server of this test alone, which it may stop."""
    folder = Path(tempfile.mkdtemp(prefix="helmr-test-", dir=memory_folder()))
    folder.chmod(0o711)
    yield EmbeddedPostgres(PostgresConfig(folder=folder / "postgres", system=folder / "system"))
    shutil.rmtree(folder)


async def test_an_empty_database_is_migrated_and_served(empty_database: str, tmp_path: Path, bounded: Bounded) -> None:
    async with serving(empty_database, tmp_path) as server, calling(server) as session, bounded():
        assert (await session.get("/readyz")).status == 200
        assert (await session.get("/v1/sessions")).status == 200
        assert (await session.get("/v1/sessions", headers={"Authorization": "Bearer hlmr_sk_other"})).status == 401


async def test_a_configured_key_may_what_a_newer_version_adds(database: str, tmp_path: Path, bounded: Bounded) -> None:
    """[Q4], 14: the key of an operator or of `helmr dev` answers questions, also where it is older than they are."""
    async with serving(database, tmp_path) as server:
        before = await server.plane.principals.authenticate(KEY)
    connection = await asyncpg.connect(database)
    await connection.execute("UPDATE principals SET permissions = array_remove(permissions, 'questions.respond')")
    await connection.close()
    async with serving(database, tmp_path) as server, bounded():
        after = await server.plane.principals.authenticate(KEY)
    assert after == before and "questions.respond" in after.permissions


async def test_two_control_planes_start_on_one_database_and_one_goes(database: str, tmp_path: Path, bounded: Bounded) -> None:
    async with serving(database, tmp_path) as first:
        async with serving(database, tmp_path) as second, calling(second) as session, bounded():
            assert (await session.get("/v1/sessions")).status == 200
        async with calling(first) as session, bounded():
            assert (await session.get("/v1/sessions")).status == 200


async def test_a_process_holds_no_more_connections_than_its_limit_and_the_listener(database: str, tmp_path: Path) -> None:
    """UD-85."""
    looking = await asyncpg.connect(database)
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    async with serving(database, tmp_path, pool_size=4) as server, calling(server) as session:

        async def ask() -> int:
            async with session.get("/v1/sessions") as response:
                return response.status

        asking = [asyncio.create_task(ask()) for _ in range(100)]
        seen = [await looking.fetchval(count) for _ in range(20)]
        assert set(await asyncio.gather(*asking)) == {200}
    await looking.close()
    assert 2 <= max(seen) <= 5


async def test_without_its_database_the_api_says_so_and_comes_back_with_it(
    own_postgres: EmbeddedPostgres, tmp_path: Path, bounded: Bounded
) -> None:
    """UD-88."""
    dsn = await own_postgres.start()
    try:
        async with serving(dsn, tmp_path) as server, calling(server) as session:
            await own_postgres.stop()
            async with bounded(), session.get("/v1/sessions") as response:
                assert response.status == 503
                problem = await response.json()
                assert (problem["code"], problem["retryable"]) == ("database_unavailable", True)
                assert "Retry-After" in response.headers
            assert (await session.get("/readyz")).status == 503
            assert (await session.get("/healthz")).status == 200
            await own_postgres.start()
            async with bounded():
                while (await session.get("/readyz")).status != 200:
                    continue
                assert (await session.get("/v1/sessions")).status == 200
    finally:
        await own_postgres.stop()


async def test_a_stop_without_the_database_ends_all_the_same(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    dsn = await own_postgres.start()
    try:
        async with asyncio.timeout(30), serving(dsn, tmp_path) as server:
            url = server.url
            await own_postgres.stop()
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(url)
    finally:
        await own_postgres.stop()


async def test_a_database_that_is_away_at_the_start_is_said(tmp_path: Path) -> None:
    server = Server(ServerConfig(dsn=f"postgresql://helmr@/helmr?host={tmp_path}", blobs=tmp_path), Listener(ListenerConfig()))
    with pytest.raises(DatabaseUnavailable):
        await server.start()
    await server.stop()


async def test_an_operator_is_told_which_database_is_away_and_why_but_not_its_password() -> None:
    dsn = "postgresql://helmr:s3cret@127.0.0.1:1/x"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HELMR_")} | {"DATABASE_URL": dsn}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "helmr.cli", "serve", "--port", "0"),
        env=environment | {"HELMR_BLOBS": os.devnull},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 4 and not out
    assert "127.0.0.1:1/x" in err.decode() and "refused" in err.decode() and "DATABASE_URL" in err.decode()
    assert b"s3cret" not in err


async def test_the_first_key_of_an_installation_is_made_once(database: str, tmp_path: Path, bounded: Bounded) -> None:
    server = Server(ServerConfig(dsn=database, blobs=tmp_path), Listener(ListenerConfig()))
    await server.start()
    try:
        key = await server.first_key()
        assert key is not None
        assert await server.first_key() is None
        async with calling(server, key) as session, bounded():
            assert (await session.get("/v1/sessions")).status == 200
    finally:
        await server.stop()


def test_the_configuration_comes_from_the_environment() -> None:
    environ = {
        "DATABASE_URL": "postgresql://helmr@db/helmr",
        "HELMR_BLOBS": "/blobs",
        "HELMR_WORKER_CREDENTIAL": "w",
        "HELMR_API_KEY": KEY,
        "HELMR_POOL_SIZE": "12",
        "HELMR_HOST": "0.0.0.0",
        "HELMR_PORT": "80",
    }
    config = ServerConfig.from_environ(environ)
    assert (config.dsn, config.blobs, config.worker_token, config.api_key, config.pool_size) == (
        "postgresql://helmr@db/helmr",
        Path("/blobs"),
        "w",
        KEY,
        12,
    )
    assert listener_config(environ) == ListenerConfig(host="0.0.0.0", port=80)
    assert KEY not in repr(config)


@pytest.mark.parametrize(
    ("name", "text"), [("DATABASE_URL", ""), ("HELMR_API_KEY", "secret"), ("HELMR_POOL_SIZE", "many"), ("HELMR_LOG_LEVEL", "loud"),
     ("HELMR_ADMISSION_RATE", "many"), ("HELMR_ADMISSION_RATE", "0"), ("HELMR_ADMISSION_RATE", "nan"), ("HELMR_ADMISSION_RATE", "inf"),
     ("HELMR_ADMISSION_BURST", "3"), ("HELMR_PAYLOAD_RETENTION", "30"), ("HELMR_PAYLOAD_RETENTION", "0d"),
     ("HELMR_COMPUTER_RETENTION", "7 days"), ("HELMR_TRIGGER_GRACE", "59s"), ("HELMR_TRIGGER_GRACE", "an hour"),
     ("HELMR_TRIGGER_COMPUTER_RETENTION", "1")],
)  # fmt: skip
def test_a_wrong_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigurationMissing, match=name):
        ServerConfig.from_environ({"DATABASE_URL": "postgresql://db/helmr", name: text})
