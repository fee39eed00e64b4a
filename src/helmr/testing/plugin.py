"""The pytest plugin: `helmr_runtime`, `helmr_sync_runtime`, `helmr_database_server`, `helmr_database`.

pytest loads it in every project beside which helmr is installed, so nothing but pytest is imported here until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helmr.testing.database import DatabaseServer
    from helmr.testing.deployment import Source
    from helmr.testing.runtime import Runtime, RuntimeFactory, SyncRuntime, SyncRuntimeFactory


@pytest.fixture(scope="session")
def helmr_database_server() -> Iterator[DatabaseServer]:
    """The PostgreSQL that all test processes of this user share. The first starts it, the last one stops it."""
    try:
        from helmr.testing.database import DatabaseServer
    except ImportError as error:
        pytest.fail(f'helmr.testing runs the control plane: install "helmr[testing]" ({error}).', pytrace=False)
    with DatabaseServer() as server:
        yield server


@pytest.fixture
def helmr_database(helmr_database_server: DatabaseServer) -> Iterator[str]:
    """The address of a migrated database for this test alone."""
    dsn = helmr_database_server.borrow()
    yield dsn
    helmr_database_server.give_back(dsn)


@pytest.fixture
def helmr_runtime(helmr_database_server: DatabaseServer) -> RuntimeFactory:
    """`async with helmr_runtime(agent, ...) as runtime:` a control plane and a host for these Agents, or those of a project's folder."""
    from helmr.testing.runtime import Runtime

    def make(*sources: Source) -> Runtime:
        return Runtime(helmr_database_server, sources)

    return make


@pytest.fixture
def helmr_sync_runtime(helmr_database_server: DatabaseServer) -> SyncRuntimeFactory:
    """`with helmr_sync_runtime(agent, ...) as runtime:` the same for tests without an event loop."""
    from helmr.testing.runtime import SyncRuntime

    def make(*sources: Source) -> SyncRuntime:
        return SyncRuntime(helmr_database_server, sources)

    return make
