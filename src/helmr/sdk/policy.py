"""Runtime MCP policies as authors write them; their grammar and algebra are in `helmr.protocol.policy`. SPEC [M1]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypeAlias, TypedDict

from helmr.protocol.policy import CreationOperation, Placement, TargetOperation


class CreationRule(TypedDict):
    """Permits creating Sessions of `agents`, on a new Computer or (with "caller") on the caller's own."""

    operation: CreationOperation
    agents: Sequence[str]
    computer: NotRequired[Placement]


class TargetRule(TypedDict):
    """Permits one operation on Sessions of `agents`."""

    operation: TargetOperation
    agents: Sequence[str]


class ListComputersRule(TypedDict):
    operation: Literal["list_computers"]


RuntimeMcpRule: TypeAlias = CreationRule | TargetRule | ListComputersRule


class RuntimeMcpPolicy(TypedDict):
    """What an Agent may do with other Sessions: the union of the rules. An empty list permits nothing."""

    allow: Sequence[RuntimeMcpRule]
