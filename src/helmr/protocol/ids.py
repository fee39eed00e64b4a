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
SaveId = NewType("SaveId", str)
SecretId = NewType("SecretId", str)
ApiKeyId = NewType("ApiKeyId", str)
ControlId = NewType("ControlId", str)
ComputerId = NewType("ComputerId", str)
CommandId = NewType("CommandId", str)
WorkerId = NewType("WorkerId", str)
PrincipalId = NewType("PrincipalId", str)
AgentKey = NewType("AgentKey", str)

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""The digit that carries the variant, 10 in binary, and two random bits."""
_DEFINITION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


_TAILS = 128
"""How many ids' random parts are drawn at once: one by one, the system calls would take most of the time."""

_tails: list[str] = []
"""Random parts that no id has yet. A forked process must not share them."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tails.clear)


def new_id() -> str:
    """A new UUIDv7: millisecond time, then 74 random bits, so that later ids sort later between milliseconds."""
    try:
        tail = _tails.pop()
    except IndexError:
        _tails.extend(_new_tails())
        return new_id()
    at = "%012x" % (time.time_ns() // 1_000_000)
    return f"{at[:8]}-{at[8:]}{tail}"


def _new_tails() -> list[str]:
    drawn = os.urandom(10 * _TAILS).hex()
    found: list[str] = []
    for start in range(0, 20 * _TAILS, 20):
        random = drawn[start : start + 20]
        found.append(f"-7{random[:3]}-{_VARIANT[random[3]]}{random[4:7]}-{random[7:19]}")
    return found


def is_id(text: str) -> bool:
    """Whether `text` has the form of an id (lower-case UUID)."""
    return _UUID(text) is not None


def parse_id(text: object, name: str) -> str:
    """`text` if it has the form of an id; raises `InvalidRequest` naming the field `name` otherwise."""
    if not isinstance(text, str) or not is_id(text):
        raise InvalidRequest(f"{name} must be an id (a lower-case UUID).")
    return text


def is_definition_id(text: str) -> bool:
    """Whether `text` may name an Agent, a Template or a trigger [A1]."""
    return _DEFINITION_ID.fullmatch(text) is not None
