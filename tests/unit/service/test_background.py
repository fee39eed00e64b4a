"""Background tasks: none outlives its owner, whenever it is stopped."""

from __future__ import annotations

import pytest

from helmr.control.service.background import Background, Coalesced

pytestmark = pytest.mark.anyio


async def test_work_that_is_stopped_before_its_first_step_leaves_nothing_behind():
    """STYLE 12: a coroutine that never began is closed, not dropped with a warning (which is an error here)."""
    begun: list[str] = []

    async def work(key: str) -> None:
        begun.append(key)

    background = Background()
    Coalesced(background, "test").ask("a", work)
    await background.stop()
    Coalesced(background, "test").ask("b", work)
    assert begun == []
