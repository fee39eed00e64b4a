"""The grammar and algebra of Runtime MCP policies. SPEC [M1], [M3], UD-81."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmr.protocol.errors import McpPolicyError
from helmr.protocol.policy import (
    CREATION,
    RULE_AGENTS,
    TARGETED,
    Grant,
    everything,
    granted_agents,
    narrow,
    normalize,
    parse,
    parse_normalized,
    require_agents,
    tools,
)

AGENTS = ["a", "b", "c", "d-1", "E.2"]
agents = st.lists(st.sampled_from(AGENTS), min_size=1, max_size=5, unique=True)
rules = st.one_of(
    st.builds(lambda operation, agents: {"operation": operation, "agents": agents}, st.sampled_from(TARGETED), agents),
    st.builds(lambda operation, agents: {"operation": operation, "agents": agents}, st.sampled_from(CREATION), agents),
    st.builds(
        lambda operation, agents, place: {"operation": operation, "agents": agents, "computer": place},
        st.sampled_from(CREATION),
        agents,
        st.sampled_from(["new", "caller"]),
    ),
    st.just({"operation": "list_computers"}),
)
policies = st.builds(lambda allow: {"allow": allow}, st.lists(rules, max_size=12))


@given(policies)
def test_the_normal_form_says_the_same_and_is_its_own_normal_form(policy: dict[str, Any]) -> None:
    grants = parse(policy)
    normal = normalize(grants)
    assert parse(normal) == grants == parse_normalized(normal)
    assert normalize(parse(normal)) == normal


@given(policies, st.randoms())
def test_order_and_overlap_of_rules_do_not_matter(policy: dict[str, Any], chance: random.Random) -> None:
    shuffled = [dict(rule) for rule in policy["allow"]] * 2
    chance.shuffle(shuffled)
    for rule in shuffled:
        if "agents" in rule:
            rule["agents"] = chance.sample(rule["agents"], len(rule["agents"]))
    assert normalize(parse({"allow": shuffled})) == normalize(parse(policy))


@given(policies, policies)
def test_rules_union_their_grants(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert parse({"allow": [*one["allow"], *other["allow"]]}) == parse(one) | parse(other)


@given(policies, policies)
def test_a_narrower_policy_is_granted_and_a_wider_one_refused_naming_what_is_too_much(
    maximum: dict[str, Any], asked: dict[str, Any]
) -> None:
    """UD-81, from both sides."""
    most, wanted = parse(maximum), parse(asked)
    if wanted <= most:
        assert narrow(most, asked) == wanted
    else:
        with pytest.raises(McpPolicyError, match=min(wanted - most).operation):
            narrow(most, asked)


@given(policies)
def test_an_inherited_maximum_permits_every_policy_but_the_callers_computer(policy: dict[str, Any]) -> None:
    wanted, most = parse(policy), everything(AGENTS)
    assert (wanted <= most) == all(grant.placement != "caller" for grant in wanted)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (None, "allow"),
        (True, "allow"),
        ([], "allow"),
        ({}, "needs the member allow"),
        ({"allow": None}, "list"),
        ({"allow": "spawn"}, "list"),
        ({"blockAll": True}, "'blockAll' is unknown"),
        ({"allow": [], "block_all": True}, "'block_all' is unknown"),
        ({"allow": ["spawn"]}, r"allow\[0\]"),
        ({"allow": [{"operation": "list_computers"}, {}]}, r"allow\[1\]\.operation"),
        ({"allow": [{"operation": "wait_turn", "agents": ["a"]}]}, "comes with inspect_turn"),
        ({"allow": [{"operation": "list_sessions", "agents": ["a"]}]}, "comes with inspect_session"),
        ({"allow": [{"operation": "list_agents"}]}, "names Agents"),
        ({"allow": [{"operation": ["spawn"], "agents": ["a"]}]}, "unknown"),
        ({"allow": [{"operation": "spawn"}]}, "agents"),
        ({"allow": [{"operation": "spawn", "agents": []}]}, "1 to 256"),
        ({"allow": [{"operation": "spawn", "agents": "a"}]}, "list of Agent keys"),
        ({"allow": [{"operation": "spawn", "agents": ["a", "a"]}]}, "'a' twice"),
        ({"allow": [{"operation": "spawn", "agents": ["*"]}]}, "no Agent key"),
        ({"allow": [{"operation": "spawn", "agents": [1]}]}, "no Agent key"),
        ({"allow": [{"operation": "spawn", "agents": ["a"], "computer": None}]}, '"new" or "caller"'),
        ({"allow": [{"operation": "spawn", "agents": ["a"], "computer": ["new"]}]}, '"new" or "caller"'),
        ({"allow": [{"operation": "enqueue", "agents": ["a"], "computer": "new"}]}, "takes no member 'computer'"),
        ({"allow": [{"operation": "list_computers", "agents": ["a"]}]}, "takes no member 'agents'"),
        ({"allow": [{"operation": "list_computers", "computer": "new"}]}, "takes no member 'computer'"),
        ({"allow": [{"operation": "spawn", "agents": ["a"], "note": "x"}]}, "unknown member 'note'"),
        ({"allow": [{"operation": "list_computers"}] * 257}, "257 rules"),
        ({"allow": [{"operation": "spawn", "agents": [f"a{n}" for n in range(257)]}]}, "257 keys"),
    ],
)
def test_a_policy_outside_the_grammar_is_refused_naming_the_rule(policy: object, said: str) -> None:
    with pytest.raises(McpPolicyError, match=said):
        parse(policy)


def test_an_empty_policy_grants_nothing_and_lists_no_tool() -> None:
    """[M3]"""
    assert parse({"allow": []}) == frozenset()
    assert normalize(frozenset()) == {"allow": []}
    assert tools(frozenset()) == ()


def test_exactly_the_limits_are_fine() -> None:
    policy = {"allow": [{"operation": "enqueue", "agents": [f"r{rule}a{n}" for n in range(RULE_AGENTS)]} for rule in range(256)]}
    assert len(parse(policy)) == 256 * 256


def test_a_union_past_one_rules_limit_is_split_in_order_and_says_the_same() -> None:
    grants = everything([f"agent{n:04}" for n in range(600)])
    normal = normalize(grants)
    assert all(len(rule.get("agents", ())) <= RULE_AGENTS for rule in normal["allow"])
    assert parse_normalized(normal) == grants


def test_both_placements_need_both_rules() -> None:
    both = parse({"allow": [{"operation": "spawn", "agents": ["a"]}, {"operation": "spawn", "agents": ["a"], "computer": "caller"}]})
    assert both == {Grant("spawn", "a", "new"), Grant("spawn", "a", "caller")}
    assert [rule["computer"] for rule in normalize(both)["allow"]] == ["caller", "new"]


def test_tools_come_from_their_operations_and_derived_ones_with_them() -> None:
    """[M3]"""
    assert tools(parse({"allow": [{"operation": "inspect_turn", "agents": ["a"]}]})) == ("inspect_turn", "list_agents", "wait_turn")
    assert tools(parse({"allow": [{"operation": "inspect_session", "agents": ["a"]}]})) == (
        "inspect_session",
        "list_agents",
        "list_sessions",
    )
    assert tools(parse({"allow": [{"operation": "list_computers"}]})) == ("list_computers",)
    assert len(tools(everything(["a"]))) == 15
    assert granted_agents(parse({"allow": [{"operation": "start", "agents": ["b", "a"]}]})) == ("a", "b")


def test_a_policy_names_agents_of_the_same_publication_only() -> None:
    grants = parse({"allow": [{"operation": "spawn", "agents": ["a", "ghost"]}]})
    with pytest.raises(McpPolicyError, match="'ghost'"):
        require_agents(grants, {"a"})
    require_agents(grants, {"a", "ghost"})
