"""Sessions of an Environment: create, find, attach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, overload

from helmr.client.contract import Contract, contract_of, unknown_contract
from helmr.client.reading import read
from helmr.client.session_ref import SessionRef
from helmr.client.transport import Transport, segment
from helmr.client.turn_ref import TurnRef
from helmr.protocol.errors import AgentMismatch, DeploymentMismatch
from helmr.protocol.ids import DeploymentId
from helmr.protocol.shapes import Session, SessionPage
from helmr.protocol.shapes import SessionCreateReceipt as WireReceipt
from helmr.protocol.states import SessionStatus
from helmr.protocol.unset import UNSET, UnsetType

if TYPE_CHECKING:
    from helmr.sdk.agent import AgentDefinition

I = TypeVar("I")  # noqa: E741 - input, as in the definition
R = TypeVar("R")
SessionT_co = TypeVar("SessionT_co", covariant=True)
TurnT_co = TypeVar("TurnT_co", covariant=True)


class ComputerChoice(TypedDict):
    """An existing Computer to run on."""

    id: str


class SlackRoute(TypedDict):
    """A Slack channel to open the Session in, by its raw id."""

    channel_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCreateReceipt(Generic[SessionT_co, TurnT_co]):
    """Confirms admission, not completion. `turn` is None exactly when no input was given.

    `replayed`: this is the original receipt of an exact retry [S4].
    """

    session: SessionT_co
    turn: TurnT_co
    agent: str
    deployment_id: DeploymentId
    replayed: bool = False


class Sessions:
    """`client.sessions`."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @overload
    async def create(
        self,
        *,
        agent: AgentDefinition[I, R],
        input: I,
        key: str | None = None,
        computer: ComputerChoice | None = None,
        slack: SlackRoute | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> SessionCreateReceipt[SessionRef[I, R], TurnRef[R]]: ...
    @overload
    async def create(
        self,
        *,
        agent: AgentDefinition[I, R],
        input: UnsetType = UNSET,
        key: str | None = None,
        computer: ComputerChoice | None = None,
        slack: SlackRoute | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> SessionCreateReceipt[SessionRef[I, R], None]: ...
    @overload
    async def create(
        self,
        *,
        agent: str,
        input: UnsetType = UNSET,
        key: str | None = None,
        computer: ComputerChoice | None = None,
        slack: SlackRoute | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> SessionCreateReceipt[SessionRef[Any, Any], None]: ...
    @overload
    async def create(
        self,
        *,
        agent: str,
        input: Any,
        key: str | None = None,
        computer: ComputerChoice | None = None,
        slack: SlackRoute | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> SessionCreateReceipt[SessionRef[Any, Any], TurnRef[Any]]: ...
    async def create(
        self,
        *,
        agent: AgentDefinition[Any, Any] | str,
        input: Any = UNSET,
        key: str | None = None,
        computer: ComputerChoice | None = None,
        slack: SlackRoute | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> SessionCreateReceipt[SessionRef[Any, Any], Any]:
        """Create a Session on the current Deployment, and its first Turn when `input` is given [S1], [S2].

        A definition as `agent` types input and result; an id leaves both JSON. `key` names the conversation uniquely within its Agent
        for ever [S3]. Raises `TypeError` for a str as text input, before any request; then what the server refuses, for example
        `NoCurrentDeployment`, `AgentNotFound`, `SessionKeyConflict`, `AdmissionUnavailable`.
        """
        contract: Contract[Any, Any] = contract_of(agent)
        body: dict[str, Any] = {"agent": contract.agent}
        optional = {"key": key, "computer": computer, "slack": slack, "labels": None if labels is None else dict(labels)}
        body |= {name: value for name, value in optional.items() if value is not None}
        if input is not UNSET:
            body["input"] = contract.encode(input)
        answer = await self._transport.write("/v1/sessions", body, idempotency_key)
        receipt = read(WireReceipt, answer)
        turn = None
        if receipt.turn is not None:
            turn = TurnRef(self._transport, receipt.session.id, receipt.turn.id, decode=contract.decode, sequence=receipt.turn.sequence)
        return SessionCreateReceipt(
            session=SessionRef(self._transport, receipt.session.id, contract),
            turn=turn,
            agent=receipt.session.agent,
            deployment_id=receipt.session.deployment_id,
            replayed=answer.replayed,
        )

    async def get(self, id: str) -> Session:
        """A Session now. Raises `SessionNotFound`."""
        return read(Session, await self._transport.call("GET", f"/v1/sessions/{segment(id)}"))

    @overload
    async def list(self, *, agent: AgentDefinition[Any, Any] | str, key: str) -> SessionPage: ...
    @overload
    async def list(
        self,
        *,
        agent: AgentDefinition[Any, Any] | str | None = None,
        parent_session_id: str | None = None,
        requester_session_id: str | None = None,
        status: SessionStatus | Sequence[SessionStatus] | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> SessionPage: ...
    async def list(
        self,
        *,
        agent: AgentDefinition[Any, Any] | str | None = None,
        key: str | None = None,
        parent_session_id: str | None = None,
        requester_session_id: str | None = None,
        status: SessionStatus | Sequence[SessionStatus] | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> SessionPage:
        """A page of Sessions, filtered; or the one Session of an Agent's `key`, which goes with no other filter [S3]."""
        query: dict[str, object] = {
            "agent": agent if agent is None or isinstance(agent, str) else agent.id,
            "key": key,
            "parent_session_id": parent_session_id,
            "requester_session_id": requester_session_id,
            "status": [status] if isinstance(status, str) else list(status or ()),
            "label": [f"{name}:{value}" for name, value in (labels or {}).items()],
            "cursor": cursor,
            "limit": limit,
        }
        return read(SessionPage, await self._transport.call("GET", "/v1/sessions", query=query))

    def ref(self, id: str) -> SessionRef[Any, Any]:
        """A handle on a Session; sends nothing and claims no types."""
        segment(id)
        return SessionRef(self._transport, id, unknown_contract())

    async def attach(self, *, id: str, agent: AgentDefinition[I, R], deployment_id: str) -> SessionRef[I, R]:
        """A typed handle on an existing Session, whose Agent and Deployment are checked.

        Raises `AgentMismatch`, `DeploymentMismatch`, `SessionNotFound`.
        """
        found = await self.get(id)
        if found.agent != agent.id:
            raise AgentMismatch(f"Session {id} runs the Agent {found.agent}, not {agent.id}.", agent=found.agent)
        if found.deployment_id != deployment_id:
            raise DeploymentMismatch(
                f"Session {id} is pinned to Deployment {found.deployment_id}, not {deployment_id}.", deployment_id=found.deployment_id
            )
        return SessionRef(self._transport, id, contract_of(agent))
