"""The contexts that `init` and handlers get, from the `session.open` frame. SPEC [A5]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from helmr.guest.runtime.flights import AWAKE_SECONDS, flights
from helmr.protocol.errors import AuthoringError
from helmr.protocol.states import AbortReason
from helmr.sdk.context import (
    AgentContext,
    ComputerIdentity,
    DeploymentIdentity,
    McpConnectionOptions,
    ParentIdentity,
    Recovery,
    RuntimeMcp,
    SessionIdentity,
)
from helmr.sdk.signal import AbortController, AbortSignal


class McpUnavailable(AuthoringError):
    """The runtime MCP server is not available in this version of Helmr."""

    code = "mcp_unavailable"


class NoMcp(RuntimeMcp):
    """The runtime MCP server, as long as there is none."""

    __slots__ = ()

    async def get_connection_options(self, policy: Mapping[str, Any] | None = None) -> McpConnectionOptions:
        raise McpUnavailable


class LiveContext(AgentContext[Any]):
    """The context of a Session process: `init` and all Turns share it."""

    __slots__ = ("_computer", "_controller", "_deployment", "_init_result", "_mcp", "_recovery", "_session")

    def __init__(self, opened: Mapping[str, Any]) -> None:
        session: Mapping[str, Any] = opened["session"]
        parent = session.get("parent")
        recovery: Mapping[str, Any] = opened["recovery"]
        self._session = SessionIdentity(
            id=session["id"],
            key=session.get("key"),
            parent=None if parent is None else ParentIdentity(id=_id(parent)),
        )
        self._computer = ComputerIdentity(id=_id(opened["computer"]))
        self._deployment = DeploymentIdentity(id=_id(opened["deployment"]))
        self._recovery = Recovery(kind=recovery["kind"], reason=recovery.get("reason"))
        self._controller = AbortController()
        self._mcp = NoMcp()
        self._init_result: Any = None

    @property
    def mcp(self) -> RuntimeMcp:
        return self._mcp

    @property
    def session(self) -> SessionIdentity:
        return self._session

    @property
    def computer(self) -> ComputerIdentity:
        return self._computer

    @property
    def deployment(self) -> DeploymentIdentity:
        return self._deployment

    @property
    def recovery(self) -> Recovery:
        return self._recovery

    @property
    def signal(self) -> AbortSignal:
        return self._controller.signal

    @property
    def init_result(self) -> Any:
        return self._init_result

    def keep_awake(self) -> AbstractAsyncContextManager[None]:
        return self._keep_awake()

    def shut_down(self, reason: AbortReason) -> None:
        """Abort the signal: the process ends."""
        self._controller.abort(reason)

    def initialized(self, result: Any) -> None:
        """Keep what `init` returned."""
        self._init_result = result

    @asynccontextmanager
    async def _keep_awake(self) -> AsyncGenerator[None, None]:
        flight = flights.begin("kept")
        limit = asyncio.get_running_loop().call_later(AWAKE_SECONDS, flight.end)
        try:
            yield
        finally:
            limit.cancel()
            flight.end()


def _id(value: Any) -> str:
    """An identity on the wire: a text, or an object with an `id`."""
    return value if isinstance(value, str) else value["id"]
