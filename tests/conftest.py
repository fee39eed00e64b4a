"""What every test may use: one event loop policy, a bound on waiting, and databases of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helmr.testing.database import DatabaseServer

# Some hundred commands, servers and hosts are started: as for most users, what the first one compiled is there for the others.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Workers look how full their disks are, and hold new work on one that is: no test is about the disk of the machine that it runs on [C7].
os.environ["HELMR_STORAGE_HIGH"] = "100%"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Of a run in a shell's background, say; every program that is started here would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

PATIENCE_SECONDS = 5.0
"""How long a test waits for anything: a signal that does not come by then never comes (STYLE 17)."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio; other loops are no product of ours."""
    return "asyncio"


@pytest.fixture
def bounded() -> Callable[[], AbstractAsyncContextManager[object]]:
    """`async with bounded():` fails the test when what is inside waits longer than five seconds."""
    return lambda: asyncio.timeout(PATIENCE_SECONDS)


@pytest.fixture(scope="session")
def database_server(helmr_database_server: DatabaseServer) -> DatabaseServer:
    """The plugin's own, by the name that our tests have for it."""
    from tests import apart

    apart.SERVERS.append(helmr_database_server)
    return helmr_database_server


@pytest.fixture
def database(database_server: DatabaseServer, helmr_database: str) -> str:
    """The address of a migrated database for this test alone."""
    return helmr_database


@pytest.fixture
def empty_database(database_server: DatabaseServer) -> Iterator[str]:
    """The address of a database without any migration, for this test alone."""
    dsn = database_server.empty()
    yield dsn
    database_server.drop(dsn)
