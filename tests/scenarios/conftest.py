"""Installations that the scenarios share: one that everything of may be killed, since each test brings back what it kills."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.scenarios.installed import installed

from helmr.client import HelmrClient
from helmr.testing.installation import Installation

PROJECT = Path(__file__).parent / "project"


@pytest.fixture(scope="session")
async def whole(anyio_backend: str) -> AsyncIterator[Installation]:
    """The shared installation, whatever state the test before left it in."""
    async with installed(PROJECT) as installation:
        yield installation


@pytest.fixture
async def installation(whole: Installation) -> AsyncIterator[Installation]:
    """A whole, running installation; what a test killed is started again after it."""
    yield whole
    if whole.server is None or whole.server.poll() is not None or whole.planes[0].fault:
        whole.kill_server()
        await whole.start_server()
    if whole.worker is None or whole.worker.poll() is not None:
        whole.start_worker()


@pytest.fixture
async def client(installation: Installation) -> AsyncIterator[HelmrClient]:
    async with installation.client() as client:
        yield client
