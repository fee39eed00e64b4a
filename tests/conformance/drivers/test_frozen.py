"""hostd killed on the way to sleep by freezing, and on the way back. [C6], [C3]."""

from __future__ import annotations

import pytest
from jail import Jail
from killed import lives_through

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root", "bubblewrap-user")]


async def test_a_hostd_that_is_killed_at_any_step_of_freezing_or_thawing_loses_nothing(jail: Jail) -> None:
    """Two steps of each way: what is done to the processes, and what is on disk of it."""
    await lives_through(jail, {"frozen": "sleep", "frozen_told": "sleep", "thawed_told": "wake", "thawed": "wake"})
