"""Identifiers: lower-case UUIDv7 texts, each kind a type of its own."""

from __future__ import annotations

import os
import re
import time
from typing import NewType

from helmr.protocol.errors import InvalidRequest

EnvironmentId = NewType("EnvironmentId", str)
DeploymentId = NewType("DeploymentId", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
QuestionId = NewType("QuestionId", str)
HoldId = NewType("HoldId", str)
ControlId = NewType("ControlId", str)
ComputerId = NewType("ComputerId", str)
WorkerId = NewType("WorkerId", str)
PrincipalId = NewType("PrincipalId", str)
AgentKey = NewType("AgentKey", str)

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DEFINITION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def new_id() -> str:
    """A new UUIDv7: millisecond time, then 74 random bits, so that later ids sort later between milliseconds."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80
    value |= 0x7 << 76 | (random >> 62 & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_id(text: str) -> bool:
    """Whether `text` has the form of an id (lower-case UUID)."""
    return _UUID.fullmatch(text) is not None


def parse_id(text: object, name: str) -> str:
    """`text` if it has the form of an id; raises `InvalidRequest` naming the field `name` otherwise."""
    if not isinstance(text, str) or not is_id(text):
        raise InvalidRequest(f"{name} must be an id (a lower-case UUID).")
    return text


def is_definition_id(text: str) -> bool:
    """Whether `text` may name an Agent, a Template or a trigger [A1]."""
    return _DEFINITION_ID.fullmatch(text) is not None
