"""What `init` and Turn handlers learn about where they run. SPEC [A5]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from helmr.protocol.states import RecoveryKind, RecoveryReason
from helmr.sdk.signal import AbortSignal

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    State_co = TypeVar("State_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    State_co = TypeVar("State_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentIdentity:
    """The Session that owns this one."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIdentity:
    """This Session. `key` is None unless it was created with one, `parent` unless another Session owns it."""

    id: str
    key: str | None = None
    parent: ParentIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerIdentity:
    """The Computer that this Session runs on."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentIdentity:
    """The Deployment that this Session is pinned to."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Why this process runs `init`: `initial` until an `init` of the Session succeeded, then `reconstructed` with a reason [S14]."""

    kind: RecoveryKind
    reason: RecoveryReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConnectionOptions:
    """What any MCP client needs to reach the Session's runtime MCP server [M2]."""

    url: str
    headers: Mapping[str, str]


class RuntimeMcp(ABC):
    """The way to the Session's runtime MCP server."""

    __slots__ = ()

    @abstractmethod
    async def get_connection_options(self, policy: Mapping[str, Any] | None = None) -> McpConnectionOptions:
        """A loopback URL and headers, for the Agent's maximum or the narrower `policy`. Raises `McpPolicyError` for a wider one."""


class InitContext(ABC):
    """What `init` gets: who and where this Session is. Lives as long as the Session's process."""

    __slots__ = ()

    @property
    @abstractmethod
    def mcp(self) -> RuntimeMcp:
        """The runtime MCP server, in `init` and in Turns."""

    @property
    @abstractmethod
    def session(self) -> SessionIdentity:
        """This Session."""

    @property
    @abstractmethod
    def computer(self) -> ComputerIdentity:
        """The Computer that it runs on."""

    @property
    @abstractmethod
    def deployment(self) -> DeploymentIdentity:
        """The Deployment that it is pinned to."""

    @property
    @abstractmethod
    def recovery(self) -> Recovery:
        """Whether this process is the Session's first, and if not, why."""

    @property
    @abstractmethod
    def signal(self) -> AbortSignal:
        """Aborts when the Session's process shuts down, also during `init`."""

    @abstractmethod
    def keep_awake(self) -> AbstractAsyncContextManager[None]:
        """Keep the Computer from hibernating while the context is open, 24 hours at most [C6]."""


class AgentContext(InitContext, Generic[State_co]):
    """What a Turn handler gets: the same, and what `init` returned."""

    __slots__ = ()

    @property
    @abstractmethod
    def init_result(self) -> State_co:
        """The value that `init` returned in this process; None without an `init`."""
