"""What the API asks of the services: small ports, one a noun. `control.service` satisfies them; tests bring their own.

Every method raises the declared errors (`protocol.errors`) for what it refuses; anything else is a fault and becomes a 500. Ids that are
unknown and ids of another Environment raise the same error with the same text [O1].
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from helmr.control.api.signin_ports import SignInServices
from helmr.control.api.worker_ports import Enrolments, Workers
from helmr.protocol.commands import Command, CommandLogs, CommandPage
from helmr.protocol.errors import HelmrError
from helmr.protocol.key_shapes import ApiKey
from helmr.protocol.link import Link, LinkEnd
from helmr.protocol.saves import Save
from helmr.protocol.secret_shapes import Secret, SecretDetails
from helmr.protocol.shapes import (
    AgentInfo,
    AgentPage,
    Computer,
    Deployment,
    DeploymentDiff,
    Explanation,
    Page,
    Session,
    TurnState,
)
from helmr.protocol.streams import Message, StreamKind
from helmr.protocol.triggers import TriggerInfo, TriggerPage

if TYPE_CHECKING:
    from helmr.control.service.principals import Principal
    from helmr.protocol.states import ComputerStatus, QuestionStatus


class Receipt(Protocol):
    """A write's reply: the JSON to send, and whether an earlier request with the same key made it [S4]."""

    @property
    def body(self) -> bytes: ...
    @property
    def replayed(self) -> bool: ...


class Record(Protocol):
    """A stored event: its place in the timeline, and the `Event` as compact JSON (no line breaks)."""

    @property
    def sequence(self) -> int: ...
    @property
    def body(self) -> bytes: ...


class Sessions(Protocol):
    async def create(
        self,
        principal: Principal,
        *,
        agent: str,
        input: Any,
        key: str | None,
        computer_id: str | None,
        slack_channel_id: str | None,
        labels: Mapping[str, str] | None,
        idempotency_key: str | None,
    ) -> Receipt:
        """`input` of `UNSET` makes no Turn [S1]."""
        ...

    async def get(self, principal: Principal, session_id: str) -> Session: ...

    async def list(
        self,
        principal: Principal,
        *,
        agent: str | None,
        key: str | None,
        parent_session_id: str | None,
        requester_session_id: str | None,
        status: tuple[str, ...],
        labels: tuple[tuple[str, str], ...],
        cursor: str | None,
        limit: int,
    ) -> Page[Session]: ...


class Explanations(Protocol):
    async def explain(self, principal: Principal, session_id: str) -> Explanation:
        """What the Session waits for [S23]."""
        ...


class Turns(Protocol):
    async def enqueue(self, principal: Principal, session_id: str, input: Any, idempotency_key: str | None) -> Receipt: ...

    async def get(self, principal: Principal, session_id: str, turn_id: str, wait_seconds: float) -> bytes:
        """The `TurnState` as JSON: at settlement, or when the wait is over.

        Cancelled when its reader goes; holds no connection while waiting.
        """
        ...

    async def list(self, principal: Principal, session_id: str, cursor: str | None, limit: int) -> Page[TurnState]: ...
    async def send(self, principal: Principal, session_id: str, turn_id: str, content: Any, idempotency_key: str | None) -> Receipt: ...
    async def interrupt(self, principal: Principal, session_id: str, turn_id: str, idempotency_key: str | None) -> Receipt: ...


class Questions(Protocol):
    """Pages and questions come as JSON: nothing that was asked is decoded to be sent."""

    async def get(self, principal: Principal, session_id: str, turn_id: str, question_id: str) -> bytes: ...
    async def find(self, principal: Principal, question_id: str) -> bytes: ...

    async def list(
        self, principal: Principal, session_id: str, turn_id: str, status: Sequence[QuestionStatus], cursor: str | None, limit: int
    ) -> bytes: ...

    async def of_environment(self, principal: Principal, status: Sequence[QuestionStatus], cursor: str | None, limit: int) -> bytes: ...

    async def respond(
        self,
        principal: Principal,
        session_id: str,
        turn_id: str,
        question_id: str,
        answer: Any,
        response_id: str,
        idempotency_key: str | None,
    ) -> Receipt:
        """The first answer stands [Q3]; a Session's authority never answers [Q4]."""
        ...


class Computers(Protocol):
    async def create(
        self,
        principal: Principal,
        *,
        template: str,
        key: str | None,
        secrets: Sequence[Mapping[str, Any]],
        idempotency_key: str | None,
    ) -> Receipt: ...
    async def get(self, principal: Principal, computer_id: str) -> Computer: ...

    async def list(
        self, principal: Principal, *, status: Sequence[ComputerStatus], template: str | None, cursor: str | None, limit: int
    ) -> Page[Computer]: ...

    async def members(self, principal: Principal, computer_id: str, cursor: str | None, limit: int) -> Page[Session]: ...
    async def hibernate(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Receipt: ...
    async def recover(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Receipt: ...
    async def wake(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Receipt: ...

    async def save(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Receipt: ...
    async def saves(self, principal: Principal, computer_id: str, cursor: str | None, limit: int) -> Page[Save]: ...

    async def delete(self, principal: Principal, computer_id: str, idempotency_key: str | None) -> Receipt:
        """Refused while it has open Sessions; done once its worker says that nothing is left [C9]."""
        ...


class Secrets(Protocol):
    """`secret` is a name or an id. No value comes back, in an error as little as in an answer [X1]."""

    async def create(self, principal: Principal, *, name: str, value: str, idempotency_key: str | None) -> Receipt: ...
    async def get(self, principal: Principal, secret: str) -> SecretDetails: ...
    async def list(self, principal: Principal, cursor: str | None, limit: int) -> Page[Secret]: ...
    async def rotate(self, principal: Principal, secret: str, *, value: str, idempotency_key: str | None) -> Receipt: ...

    async def revoke(self, principal: Principal, secret: str, idempotency_key: str | None) -> Receipt:
        """Once it returns, nothing new begins on Computers that have it [X2]."""
        ...


class ApiKeys(Protocol):
    """The token of a key is in the first answer only, and in no receipt."""

    async def create(
        self, principal: Principal, *, name: str, permissions: Sequence[str], expires_in: str | None, idempotency_key: str | None
    ) -> Receipt: ...
    async def get(self, principal: Principal, key_id: str) -> ApiKey: ...
    async def list(self, principal: Principal, cursor: str | None, limit: int) -> Page[ApiKey]: ...
    async def rotate(self, principal: Principal, key_id: str, *, overlap: str | None, idempotency_key: str | None) -> Receipt: ...
    async def revoke(self, principal: Principal, key_id: str, idempotency_key: str | None) -> Receipt: ...


class SaveObjects(Protocol):
    """Parts of saves, by the digests that name them. Both raise `Forbidden` for what isn't this worker's to move now [C5]."""

    async def put(self, worker_id: str, computer_id: str, name: str, chunks: AsyncIterator[bytes]) -> None: ...

    async def get(self, worker_id: str, computer_id: str, name: str) -> BinaryIO:
        """An open file, which the caller closes. Raises `ObjectNotFound`."""
        ...


class Controls(Protocol):
    async def interrupt(self, principal: Principal, session_id: str, idempotency_key: str | None) -> Receipt: ...
    async def resume(self, principal: Principal, session_id: str, hold_id: str, idempotency_key: str | None) -> Receipt: ...
    async def close(self, principal: Principal, session_id: str, idempotency_key: str | None) -> Receipt: ...
    async def cancel(self, principal: Principal, session_id: str, idempotency_key: str | None) -> Receipt: ...


class Retention(Protocol):
    async def delete_data(self, principal: Principal, session_id: str, idempotency_key: str | None) -> Receipt:
        """Expire what was said in a closed Session [S22]."""
        ...


class Events(Protocol):
    async def page(self, principal: Principal, session_id: str, after: int, limit: int) -> bytes:
        """The `EventPage` as JSON [E3]."""
        ...

    def follow(self, principal: Principal, session_id: str, after: int) -> AsyncIterator[Sequence[Record]]:
        """Lists of records above `after`, in order, without gaps, until the Session is sealed [E4].

        What is refused is raised at once, so that the reader gets a status. Holds no connection
        while waiting. The reader may stop at any point and may be slow: the iterator waits for it, nothing else does [I7].
        """
        ...


class Agents(Protocol):
    async def get(self, principal: Principal, agent: str, deployment_id: str | None) -> AgentInfo: ...
    async def list(self, principal: Principal, deployment_id: str | None, cursor: str | None, limit: int) -> AgentPage: ...


class Deployments(Protocol):
    async def missing(self, principal: Principal, digests: Sequence[str]) -> Sequence[str]:
        """Those that this Environment lacks; says nothing of other Environments."""
        ...

    async def put_blob(self, principal: Principal, digest: str, stream: AsyncIterator[bytes]) -> bool:
        """Store what `stream` yields; whether it is new. Raises `DigestMismatch` for other bytes than the digest's.

        When the stream raises, nothing is stored, and what it raised goes on.
        """
        ...

    async def publish(
        self, principal: Principal, manifest: Mapping[str, Any], promote: bool, pull: bool, idempotency_key: str | None
    ) -> Receipt: ...

    async def get(self, principal: Principal, deployment_id: str) -> Deployment: ...
    async def current(self, principal: Principal) -> Deployment: ...
    async def list(self, principal: Principal, cursor: str | None, limit: int) -> Page[Deployment]: ...
    async def diff(self, principal: Principal, deployment_id: str, since: str) -> DeploymentDiff: ...
    async def promote(self, principal: Principal, deployment_id: str, idempotency_key: str | None) -> Receipt: ...

    def log(self, principal: Principal, deployment_id: str) -> AsyncIterator[str]:
        """The build log's pieces, from the beginning until the build has ended. What is refused is raised at once."""
        ...


class Triggers(Protocol):
    async def get(self, principal: Principal, agent: str, trigger: str) -> TriggerInfo: ...
    async def list(self, principal: Principal, cursor: str | None, limit: int) -> TriggerPage: ...


class Commands(Protocol):
    """Reads wait for a change at most `wait_seconds`, and hold no connection meanwhile."""

    async def execute(
        self,
        principal: Principal,
        computer_id: str,
        *,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: str,
        timeout: str | None,
        idempotency_key: str | None,
    ) -> Receipt: ...
    async def get(self, principal: Principal, command_id: str, wait_seconds: float) -> Command: ...
    async def list(self, principal: Principal, computer_id: str, cursor: str | None, limit: int) -> CommandPage: ...
    async def logs(self, principal: Principal, command_id: str, after: int, limit: int, wait_seconds: float) -> CommandLogs: ...
    async def cancel(self, principal: Principal, command_id: str, idempotency_key: str | None) -> Receipt: ...


class Stream(Protocol):
    """One stream to a Computer (`helmr.protocol.streams`), within its windows."""

    @property
    def error(self) -> HelmrError | None:
        """Why it is over, when it did not end by a word."""
        ...

    @property
    def room(self) -> int: ...
    async def begin(self) -> Mapping[str, Any]: ...
    async def receive(self) -> Message | None: ...
    async def until_room(self) -> bool: ...
    def send(self, data: bytes) -> None: ...
    def say(self, kind: str, **members: Any) -> None: ...
    def taken(self, size: int) -> None: ...


class Streams(Protocol):
    async def open(self, principal: Principal, computer_id: str, kind: StreamKind, opening: Mapping[str, Any]) -> Stream:
        """As soon as the Computer is awake. Whoever opened it closes it."""
        ...

    def close(self, run: Any) -> None: ...


class Links(Protocol):
    def open(self, worker: str, link: Link) -> LinkEnd:
        """Take over one end of a worker's new link; the API calls `on_message` and `on_closed` of what is returned."""
        ...


class Blobs(Protocol):
    async def path(self, worker: str, environment_id: str, digest: str) -> Path:
        """The file of a blob that this worker may read. Raises `BlobNotFound`."""
        ...


class Vitals(Protocol):
    """What whoever watches should know of the whole installation; NaN when it can't be known now."""

    @property
    def running_without_lease(self) -> float: ...
    @property
    def oldest_waiting_seconds(self) -> float: ...
    @property
    def workers_pressed(self) -> float: ...


class Health(Protocol):
    async def ready(self) -> None:
        """Raises `Unavailable` unless requests can be served."""
        ...

    async def vitals(self) -> Vitals:
        """Never raises for a database that is away."""
        ...


class Services(SignInServices, Protocol):
    """All that the API stands on."""

    @property
    def sessions(self) -> Sessions: ...
    @property
    def explanations(self) -> Explanations: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def questions(self) -> Questions: ...
    @property
    def computers(self) -> Computers: ...
    @property
    def save_objects(self) -> SaveObjects: ...
    @property
    def controls(self) -> Controls: ...
    @property
    def events(self) -> Events: ...
    @property
    def retention(self) -> Retention: ...
    @property
    def agents(self) -> Agents: ...
    @property
    def deployments(self) -> Deployments: ...
    @property
    def secrets(self) -> Secrets: ...
    @property
    def api_keys(self) -> ApiKeys: ...
    @property
    def enrolments(self) -> Enrolments: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def triggers(self) -> Triggers: ...
    @property
    def commands(self) -> Commands: ...
    @property
    def streams(self) -> Streams: ...
    @property
    def links(self) -> Links: ...
    @property
    def blobs(self) -> Blobs: ...
    @property
    def health(self) -> Health: ...
