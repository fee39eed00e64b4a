"""Triggers: when Agents start by themselves."""

from __future__ import annotations

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.triggers import TriggerInfo, TriggerPage


class Triggers:
    """`client.triggers`: those of the current Deployment."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, agent: str, trigger: str) -> TriggerInfo:
        """One trigger: its schedule, what became of its last instant, its next five fires. Raises `TriggerNotFound`."""
        return read(TriggerInfo, await self._transport.call("GET", f"/v1/triggers/{segment(agent)}/{segment(trigger)}"))

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> TriggerPage:
        """A page of triggers, by Agent and id; `limit` 1-100, 50 when omitted."""
        return read(TriggerPage, await self._transport.call("GET", "/v1/triggers", query={"cursor": cursor, "limit": limit}))
