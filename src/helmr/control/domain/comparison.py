"""What one Deployment has otherwise than another. SPEC [D3]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from helmr.protocol.manifest import AgentManifest, Manifest
from helmr.protocol.shapes import Changes

NAMES: Final = 1000
"""Names that one kind of change lists; the rest is counted."""


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """What came, what went and what is not equal, sorted."""
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    listed = [names[:NAMES] for names in (added, removed, changed)]
    return Changes(
        added=tuple(listed[0]),
        removed=tuple(listed[1]),
        changed=tuple(listed[2]),
        left_out=len(added) + len(removed) + len(changed) - sum(map(len, listed)),
    )


def agents_of(manifest: Manifest) -> Mapping[str, AgentManifest]:
    """Agents without what is compared on its own, and without the line on which they stand: a comment above moves it."""
    return {agent.id: replace(agent, runtime_mcp=None, triggers=(), line=0) for agent in manifest.agents}


def policies_of(manifest: Manifest) -> Mapping[str, Any]:
    """Resolved policies by Agent."""
    return {agent.id: agent.runtime_mcp for agent in manifest.agents}


def triggers_of(manifest: Manifest) -> Mapping[str, Any]:
    """Triggers as `agent/trigger`."""
    return {f"{agent.id}/{trigger.id}": trigger for agent in manifest.agents for trigger in agent.triggers}


def templates_of(manifest: Manifest) -> Mapping[str, Any]:
    return {template.id: template for template in manifest.templates}
