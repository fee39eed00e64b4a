"""Runtime MCP policies: their grammar, their one normal form, and the algebra on them. SPEC [M1].

A policy is `{"allow": [rule, ...]}`. What it permits is a set of *grants* (operation, Agent key, placement); two policies are equal
when their grants are, whatever the order and overlap of their rules. Pure functions: publication, guest and server share them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from helmr.protocol.errors import McpPolicyError
from helmr.protocol.ids import is_definition_id

TargetOperation = Literal[
    "enqueue",
    "send_turn",
    "inspect_session",
    "inspect_turn",
    "interrupt_turn",
    "interrupt_session",
    "resume_session",
    "close_session",
    "cancel_session",
]
CreationOperation = Literal["start", "spawn"]
Operation = Literal[TargetOperation, CreationOperation, "list_computers"]
Placement = Literal["new", "caller"]

CREATION: Final[tuple[str, ...]] = ("spawn", "start")
TARGETED: Final[tuple[str, ...]] = (
    "cancel_session",
    "close_session",
    "enqueue",
    "inspect_session",
    "inspect_turn",
    "interrupt_session",
    "interrupt_turn",
    "resume_session",
    "send_turn",
)
LIST_COMPUTERS: Final = "list_computers"
DERIVED: Final[Mapping[str, str]] = {"wait_turn": "inspect_turn", "list_sessions": "inspect_session"}
"""Tools that come with another operation and are never authored."""

RULES: Final = 256
RULE_AGENTS: Final = 256
SCOPES: Final = 16
"""Distinct policies that one Session process may hold credentials for, its maximum included."""


class Grant(NamedTuple):
    """One thing that is permitted. `agent` and `placement` are empty where the operation has none."""

    operation: str
    agent: str = ""
    placement: str = ""


Grants: TypeAlias = frozenset[Grant]


def parse(value: object) -> Grants:
    """The grants of an authored policy. Raises `McpPolicyError` naming the rule that breaks the grammar."""
    if not isinstance(value, Mapping):
        raise McpPolicyError('A policy is {"allow": [rule, ...]}; leave it out to inherit everything.')
    members = cast("Mapping[object, object]", value)
    unknown = [name for name in members if name != "allow"]
    if unknown:
        raise McpPolicyError(f"A policy has the member allow alone; {unknown[0]!r} is unknown.")
    if "allow" not in members:
        raise McpPolicyError("A policy needs the member allow; an empty list grants nothing.")
    rules = members["allow"]
    if not isinstance(rules, (list, tuple)):
        raise McpPolicyError("allow must be a list of rules.")
    listed = cast("Sequence[object]", rules)
    if len(listed) > RULES:
        raise McpPolicyError(f"allow has {len(listed)} rules; at most {RULES} are allowed.")
    found: set[Grant] = set()
    for index, rule in enumerate(listed):
        found |= _rule(rule, f"allow[{index}]")
    return frozenset(found)


def _rule(value: object, where: str) -> set[Grant]:
    if not isinstance(value, Mapping):
        raise McpPolicyError(f"{where} must be an object with an operation.")
    rule = cast("Mapping[object, object]", value)
    operation = rule.get("operation")
    creates, targets = operation in CREATION, operation in TARGETED
    if not isinstance(operation, str) or not (creates or targets or operation == LIST_COMPUTERS):
        raise McpPolicyError(f"{where}.operation {operation!r} is unknown.{_advice(operation)}")
    allowed = {"operation", "agents", "computer"} if creates else {"operation", "agents"} if targets else {"operation"}
    for name in rule:
        if name not in allowed:
            known = name in ("agents", "computer")
            raise McpPolicyError(f"{where} ({operation}) {'takes no' if known else 'has an unknown'} member {name!r}.")
    if operation == LIST_COMPUTERS:
        return {Grant(operation)}
    placement = rule.get("computer", "new") if creates else ""
    if creates and placement not in ("new", "caller"):
        raise McpPolicyError(f'{where}.computer must be "new" or "caller".')
    return {Grant(operation, agent, cast("str", placement)) for agent in _agents(rule.get("agents"), where)}


def _advice(operation: object) -> str:
    if isinstance(operation, str) and operation in DERIVED:
        return f" It comes with {DERIVED[operation]}; grant that."
    if operation == "list_agents":
        return " It comes with every rule that names Agents."
    return f" Use one of {', '.join((*CREATION, *TARGETED, LIST_COMPUTERS))}."


def _agents(value: object, where: str) -> Sequence[str]:
    if not isinstance(value, (list, tuple)):
        raise McpPolicyError(f"{where}.agents must be a list of Agent keys.")
    agents = cast("Sequence[object]", value)
    if not 1 <= len(agents) <= RULE_AGENTS:
        raise McpPolicyError(f"{where}.agents has {len(agents)} keys; a rule names 1 to {RULE_AGENTS}.")
    seen: set[str] = set()
    for agent in agents:
        if not isinstance(agent, str) or not is_definition_id(agent):
            raise McpPolicyError(f"{where}.agents holds {agent!r}, which is no Agent key.")
        if agent in seen:
            raise McpPolicyError(f"{where}.agents names {agent!r} twice.")
        seen.add(agent)
    return cast("Sequence[str]", agents)


def everything(agents: Collection[str]) -> Grants:
    """What an omitted policy resolves to at publication: all operations on exactly these Agents, new Computers for creations."""
    grants = {Grant(operation, agent) for operation in TARGETED for agent in agents}
    grants |= {Grant(operation, agent, "new") for operation in CREATION for agent in agents}
    return frozenset(grants | {Grant(LIST_COMPUTERS)})


def require_agents(grants: Grants, published: Collection[str]) -> None:
    """Raise `McpPolicyError` for the first key that isn't of the same published manifest."""
    for grant in sorted(grants):
        if grant.agent and grant.agent not in published:
            raise McpPolicyError(f"The policy's rule {grant.operation} names the Agent {grant.agent!r}, which this project does not have.")


def normalize(grants: Grants) -> dict[str, Any]:
    """The one normal form of a policy: rules sorted by operation and placement, keys sorted; equal grants give equal values.

    A rule with more than 256 keys is split in order, so that the grammar's bound on a rule holds.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for grant in sorted(grants):
        groups.setdefault((grant.operation, grant.placement), []).append(grant.agent)
    allow: list[dict[str, Any]] = []
    for (operation, placement), agents in sorted(groups.items()):
        if operation == LIST_COMPUTERS:
            allow.append({"operation": operation})
            continue
        for start in range(0, len(agents), RULE_AGENTS):
            rule: dict[str, Any] = {"operation": operation, "agents": agents[start : start + RULE_AGENTS]}
            if placement:
                rule["computer"] = placement
            allow.append(rule)
    return {"allow": allow}


def parse_normalized(value: Mapping[str, Any]) -> Grants:
    """The grants of what `normalize` made, where the number of rules isn't bounded. Raises `McpPolicyError`."""
    rules = cast("Sequence[object]", value.get("allow", ()))
    return frozenset(grant for index, rule in enumerate(rules) for grant in _rule(rule, f"allow[{index}]"))


def narrow(maximum: Grants, value: object) -> Grants:
    """The grants of a getter's policy within `maximum`. Raises `McpPolicyError` naming the first grant that would widen it [M1]."""
    asked = parse(value)
    wider = sorted(asked - maximum)
    if wider:
        grant = wider[0]
        target = f" on {grant.agent!r}" if grant.agent else ""
        place = f" with computer {grant.placement!r}" if grant.placement else ""
        raise McpPolicyError(f"The policy is wider than this Agent's maximum: {grant.operation}{target}{place} is not granted.")
    return asked


def tools(grants: Grants) -> tuple[str, ...]:
    """The names of the tools that these grants list, derived ones included, sorted [M3]."""
    named = {grant.operation for grant in grants}
    named |= {tool for tool, operation in DERIVED.items() if operation in named}
    if any(grant.agent for grant in grants):
        named.add("list_agents")
    return tuple(sorted(named))


def granted_agents(grants: Grants) -> tuple[str, ...]:
    """The Agent keys that any rule names, sorted: what `list_agents` shows."""
    return tuple(sorted({grant.agent for grant in grants if grant.agent}))
