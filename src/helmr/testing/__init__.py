"""Tests of Agents, and of programs on top of Helmr. `docs/guides/testing.md`.

The fixtures come with the plugin (`helmr.testing.plugin`), which pytest loads by itself. What is listed here is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helmr.testing.clock import Clock
    from helmr.testing.faults import POINTS, Fault, Faults
    from helmr.testing.gate import Gate
    from helmr.testing.person import Person
    from helmr.testing.runtime import AsyncClock, Runtime, RuntimeFactory, RuntimeProblem, SyncRuntime, SyncRuntimeFactory

__all__ = [
    "POINTS",
    "AsyncClock",
    "Clock",
    "Fault",
    "Faults",
    "Gate",
    "Person",
    "Runtime",
    "RuntimeFactory",
    "RuntimeProblem",
    "SyncRuntime",
    "SyncRuntimeFactory",
]

_WHERE = {
    "POINTS": "faults",
    "Fault": "faults",
    "Faults": "faults",
    "Clock": "clock",
    "Gate": "gate",
    "Person": "person",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE.get(name, 'runtime')}"), name)
