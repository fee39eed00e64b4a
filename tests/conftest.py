"""What every test may use: one event loop policy, a bound on waiting, and cloned databases (tests/service/conftest.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

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
