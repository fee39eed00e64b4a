"""Agents that a Deployment publishes."""

from __future__ import annotations

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.shapes import AgentInfo, AgentPage


class Agents:
    """`client.agents`. Without a `deployment_id` the current Deployment is read; a cursor keeps the one it began with."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, id: str, *, deployment_id: str | None = None) -> AgentInfo:
        """One Agent: its input contract and its resolved Runtime MCP policy. Raises `AgentNotFound`."""
        query = {"deployment_id": deployment_id}
        return read(AgentInfo, await self._transport.call("GET", f"/v1/agents/{segment(id)}", query=query))

    async def list(self, *, deployment_id: str | None = None, cursor: str | None = None, limit: int | None = None) -> AgentPage:
        """A page of Agents; `limit` 1-100, 50 when omitted."""
        query = {"deployment_id": deployment_id, "cursor": cursor, "limit": limit}
        return read(AgentPage, await self._transport.call("GET", "/v1/agents", query=query))
