"""What a promotion does to the windows in which triggers are active. SPEC [T3]. A trigger is its id within its Agent (UD-73)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

Trigger: TypeAlias = tuple[str, str]
"""Agent id and trigger id."""


class Rule(NamedTuple):
    """When it fires."""

    schedule: str
    timezone: str


class WindowChange(NamedTuple):
    keep: frozenset[Trigger]
    close: frozenset[Trigger]
    open: frozenset[Trigger]
    """One that is closed and opened fires by another rule from now on."""


def decide_windows(active: Mapping[Trigger, Rule], wanted: Mapping[Trigger, Rule]) -> WindowChange:
    """From the triggers that have a window to those of the Deployment that becomes current."""
    keep = {trigger for trigger, rule in active.items() if wanted.get(trigger) == rule}
    return WindowChange(frozenset(keep), frozenset(active.keys() - keep), frozenset(wanted.keys() - keep))
