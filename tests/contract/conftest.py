"""One runtime for each table."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.contract.stage import AGENTS, Stage
from tests.service.timelines import check_events

from helmr.testing import Runtime
from helmr.testing.database import DatabaseServer

PATIENCE_SECONDS: Final = 20.0
"""A row that waits longer has failed; it ends as such, and the runtime goes on to the next one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _bounded(item.obj)


def _bounded(test: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(test)
    async def bounded(**fixtures: Any) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await test(**fixtures)

    return bounded


@pytest.fixture(scope="module")
async def stage(anyio_backend: str, helmr_database_server: DatabaseServer) -> AsyncIterator[Stage]:
    async with Runtime(helmr_database_server, AGENTS) as runtime:
        stage = Stage(runtime)
        yield stage
        stage.examine(lambda connection: check_events(connection.fetch))
