"""Input sources, from the wire."""

from __future__ import annotations

from typing import Any

from helmr.protocol.sources import InputSource, SlackSource


def input_source(value: dict[str, Any] | None) -> InputSource:
    """The source of an input or message. Members that a newer control plane adds are left out [D5]."""
    members = {name: member for name, member in (value or {"kind": "api_key"}).items() if name in InputSource.__dataclass_fields__}
    if isinstance(members.get("slack"), dict):
        members["slack"] = SlackSource(**{name: members["slack"][name] for name in SlackSource.__dataclass_fields__})
    return InputSource(**members)
