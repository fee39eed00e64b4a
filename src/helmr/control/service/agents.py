"""Discovery of published Agents. SPEC [D3], `contract` "Client: Agents"."""

from __future__ import annotations

from typing import Any

from helmr.control.service.core import Core
from helmr.control.service.manifests import Manifests, agent_of
from helmr.control.service.principals import Principal
from helmr.control.store.pool import Connection
from helmr.control.store.queries import deployments
from helmr.protocol.errors import DeploymentNotFound, InvalidCursor, NoCurrentDeployment
from helmr.protocol.ids import DeploymentId, is_id
from helmr.protocol.manifest import AgentManifest
from helmr.protocol.shapes import AgentInfo, AgentPage
from helmr.protocol.unset import UNSET


class Agents:
    def __init__(self, core: Core, manifests: Manifests) -> None:
        self._core = core
        self._manifests = manifests

    async def get(self, principal: Principal, agent: str, deployment_id: str | None) -> AgentInfo:
        """One Agent of the current, or the named, Deployment. Raises `AgentNotFound`, `DeploymentNotFound`."""
        principal.require("deployments.read")
        async with self._core.database.connection() as connection:
            row = await self._deployment(connection, principal, deployment_id)
        manifest = self._manifests.of(str(row["id"]), row["manifest"])
        return _info(agent_of(manifest, agent), str(row["id"]))

    async def list(self, principal: Principal, deployment_id: str | None, cursor: str | None, limit: int) -> AgentPage:
        """The Agents of a Deployment by id. A cursor keeps the Deployment with which the listing began."""
        principal.require("deployments.read")
        after = ""
        if cursor is not None:
            kept, _, after = cursor.partition(":")
            if not is_id(kept) or not after or (deployment_id is not None and deployment_id != kept):
                raise InvalidCursor()
            deployment_id = kept
        async with self._core.database.connection() as connection:
            row = await self._deployment(connection, principal, deployment_id)
        manifest = self._manifests.of(str(row["id"]), row["manifest"])
        rest = sorted((agent for agent in manifest.agents if agent.id > after), key=lambda agent: agent.id)
        following = f"{row['id']}:{rest[limit - 1].id}" if len(rest) > limit else None
        items = tuple(_info(agent, str(row["id"])) for agent in rest[:limit])
        return AgentPage(deployment_id=DeploymentId(str(row["id"])), items=items, next_cursor=following)

    async def _deployment(self, connection: Connection, principal: Principal, deployment_id: str | None) -> Any:
        if deployment_id is None:
            row = await deployments.current_deployment(connection, environment_id=principal.environment_id)
            if row is None:
                raise NoCurrentDeployment()
            return row
        row = None
        if is_id(deployment_id):
            row = await deployments.deployment_row(connection, id=deployment_id, environment_id=principal.environment_id)
        if row is None:
            raise DeploymentNotFound()
        return row


def _info(agent: AgentManifest, deployment_id: str) -> AgentInfo:
    schema: Any = UNSET
    if agent.input_kind == "json":
        if agent.input_schema is not None:
            schema = {"status": "available", "schema": agent.input_schema}
        else:
            schema = {"status": "unavailable", "reason": agent.input_schema_unavailable or "The schema offers no JSON Schema."}
    return AgentInfo(
        agent=agent.id,
        template=agent.template,
        deployment_id=DeploymentId(deployment_id),
        input_kind=agent.input_kind,
        runtime_mcp=agent.runtime_mcp or {"allow": []},
        input_schema=schema,
    )
