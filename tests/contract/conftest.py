"""One runtime for each table."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contract.stage import AGENTS, Stage
from tests.service.timelines import check_events

from helmr.testing import Runtime
from helmr.testing.database import DatabaseServer


@pytest.fixture(scope="module")
async def stage(anyio_backend: str, helmr_database_server: DatabaseServer) -> AsyncIterator[Stage]:
    async with Runtime(helmr_database_server, AGENTS) as runtime:
        stage = Stage(runtime)
        yield stage
        stage.examine(check_events)
