"""What starts beside one another in `helmr dev`, and fails beside one another [D4]."""

from __future__ import annotations

import asyncio

import pytest

from helmr.dev.app import _together
from helmr.protocol.errors import FolderUnusable, HelmrError, SetupError

pytestmark = pytest.mark.anyio


async def started() -> str:
    return "postgresql://"


async def failing(error: Exception) -> str:
    raise error


async def waiting() -> str:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def test_the_address_is_that_of_the_first() -> None:
    assert await _together(started(), waiting_no_longer()) == "postgresql://"


async def waiting_no_longer() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("both", [False, True])
async def test_what_is_missing_on_this_machine_is_told_as_itself_and_not_as_a_group(both: bool) -> None:
    """A machine without user namespaces, where PostgreSQL's folder is closed as well, had a traceback of a group for its answer."""
    second = failing(SetupError("no user namespaces")) if both else waiting()
    with pytest.raises(HelmrError) as told:
        await _together(failing(FolderUnusable("closed")), second)
    assert isinstance(told.value, SetupError)


async def test_an_error_of_ours_is_not_hidden_behind_one_of_the_machine() -> None:
    with pytest.raises(ExceptionGroup):
        await _together(failing(FolderUnusable("closed")), failing(KeyError("ours")))
