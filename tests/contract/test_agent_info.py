"""contract, "Client: Agents": `AgentInfo` and `AgentPage`, member by member."""

from __future__ import annotations

import pytest
from tests.contract.stage import AGENTS

from helmr.protocol.errors import AgentNotFound, DeploymentNotFound, InvalidCursor
from helmr.protocol.ids import new_id
from helmr.protocol.unset import UNSET

pytestmark = pytest.mark.anyio


async def test_a_text_agent_has_no_input_schema(stage):
    info = await stage.client.agents.get("actor")
    assert (info.agent, info.template, info.input_kind, info.input_schema) == ("actor", "small", "text", UNSET)
    assert info.deployment_id == (await stage.client.sessions.create(agent="actor")).deployment_id


async def test_a_json_agent_has_a_schema_or_the_reason_why_it_has_none(stage):
    info = await stage.client.agents.get("typed")
    assert info.input_kind == "json"
    status = info.input_schema["status"]
    assert status in ("available", "unavailable")
    assert info.input_schema["schema" if status == "available" else "reason"]


async def test_an_unknown_agent_or_deployment_is_not_found(stage):
    with pytest.raises(AgentNotFound):
        await stage.client.agents.get("nobody")
    with pytest.raises(DeploymentNotFound):
        await stage.client.agents.get("actor", deployment_id=new_id())


async def test_a_list_shows_the_same_policy_and_keeps_its_deployment_across_pages(stage):
    first = await stage.client.agents.list(limit=1)
    current = await stage.runtime.deploy(*AGENTS[:1])
    try:
        seen, page = list(first.items), first
        while page.next_cursor is not None:
            page = await stage.client.agents.list(limit=1, cursor=page.next_cursor)
            assert page.deployment_id == first.deployment_id
            seen += page.items
        assert [info.agent for info in seen] == sorted(agent.id for agent in AGENTS)
        assert seen[0] == await stage.client.agents.get(seen[0].agent, deployment_id=first.deployment_id)
        assert (await stage.client.agents.list()).deployment_id == current
        assert [info.agent for info in (await stage.client.agents.list(deployment_id=first.deployment_id)).items] == [
            info.agent for info in seen
        ]
        with pytest.raises(InvalidCursor):
            await stage.client.agents.list(cursor="nonsense")
    finally:
        await stage.runtime.deploy(*AGENTS)
