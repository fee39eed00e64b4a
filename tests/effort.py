"""How hard a test tries: as `make test` may take, or as `make soak` (HELMR_SOAK) wants it."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

SOAKING = bool(os.environ.get("HELMR_SOAK"))


def often(usual: int, *, soak: int = 1000) -> int:
    """How many rounds a race is run, or how many cases are tried."""
    return soak if SOAKING else usual


def examples(usual: int, *, soak: int = 1000, **more: Any) -> settings:
    """How many examples a property is tried with: in `make test` the same ones each time."""
    checks = list(HealthCheck)
    count = often(usual, soak=soak)
    return settings(max_examples=count, derandomize=not SOAKING, database=None, deadline=None, suppress_health_check=checks, **more)
