"""Agents of a Deployment, and what they take. SPEC 12."""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import AgentPageQuery, AgentQuery, Nothing
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.shapes import AgentInfo, AgentPage


async def get(call: Call[AgentQuery, Nothing]) -> Answer:
    return encoded(await call.services.agents.get(call.principal, call.path["agent"], given(call.query.deployment_id)))


async def list_(call: Call[AgentPageQuery, Nothing]) -> Answer:
    query = call.query
    return encoded(await call.services.agents.list(call.principal, given(query.deployment_id), given(query.cursor), query.limit))


AGENT_ROUTES = (
    Route(
        method="GET",
        path="/v1/agents",
        name="list_agents",
        summary="List the Agents of a Deployment; of the current one unless another is named",
        handler=list_,
        tag="Agents",
        permission="deployments.read",
        query=AgentPageQuery,
        answer=AgentPage,
        errors=(errors.DeploymentNotFound, errors.NoCurrentDeployment, errors.InvalidCursor),
    ),
    Route(
        method="GET",
        path="/v1/agents/{agent}",
        name="get_agent",
        summary="Read an Agent's input contract and policy",
        handler=get,
        tag="Agents",
        permission="deployments.read",
        query=AgentQuery,
        answer=AgentInfo,
        errors=(errors.DeploymentNotFound, errors.NoCurrentDeployment),
    ),
)
