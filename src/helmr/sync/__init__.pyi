# Written by "python -m helmr.sync.stubs" from the sources of helmr.client. Don't edit.

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, overload

from helmr.client.asks import StatusFilter
from helmr.client.client import DEFAULT_RETRY
from helmr.client.commands import CommandOutput
from helmr.client.outcome import TimedTurnWaitResult, TurnOutcome
from helmr.client.retry import RetryPolicy
from helmr.client.sessions import ComputerChoice, SessionCreateReceipt, SlackRoute
from helmr.protocol.archive import Copied
from helmr.protocol.audit_shapes import AuditPage, InstallationLogPage
from helmr.protocol.commands import Command, CommandCancelReceipt, CommandLogs, CommandPage, CopyReceipt
from helmr.protocol.content import InputContent
from helmr.protocol.duration import Duration
from helmr.protocol.environment_shapes import Environment, EnvironmentPage, Project, ProjectPage
from helmr.protocol.ids import CommandId, SessionId, TurnId
from helmr.protocol.key_shapes import ApiKey, ApiKeyPage, NewApiKey
from helmr.protocol.manifest import Manifest
from helmr.protocol.member_shapes import Member, MemberPage, NewMember
from helmr.protocol.questions import Answer
from helmr.protocol.saves import SavePage, SaveReceipt
from helmr.protocol.secret_shapes import Secret, SecretDetails, SecretPage
from helmr.protocol.secrets import SecretBinding
from helmr.protocol.shapes import (
    AgentInfo,
    AgentPage,
    Capabilities,
    Computer,
    ComputerCreateReceipt,
    ComputerPage,
    ComputerReceipt,
    Deployment,
    DeploymentDiff,
    Event,
    EventPage,
    Explanation,
    MessageReceipt,
    Page,
    QuestionPage,
    QuestionReceipt,
    QuestionState,
    Session,
    SessionDataReceipt,
    SessionInterruptReceipt,
    SessionPage,
    SessionResumeReceipt,
    SessionStatusReceipt,
    TurnInterruptReceipt,
    TurnPage,
    TurnState,
)
from helmr.protocol.signin_shapes import Myself, PasswordLink, Role
from helmr.protocol.states import ComputerStatus, SessionStatus
from helmr.protocol.triggers import TriggerInfo, TriggerPage
from helmr.protocol.unset import UNSET, UnsetType
from helmr.protocol.worker_shapes import NewWorkerEnrolment, WorkerDetails, WorkerEnrolment, WorkerEnrolmentPage, WorkerPage
from helmr.sdk.agent import AgentDefinition

I_contra = TypeVar("I_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
I = TypeVar("I")
R = TypeVar("R")

class Agents:
    """`client.agents`. Without a `deployment_id` the current Deployment is read; a cursor keeps the one it began with."""

    def get(self, id: str, *, deployment_id: str | None = None) -> AgentInfo:
        """One Agent: its input contract and its resolved Runtime MCP policy. Raises `AgentNotFound`."""

    def list(self, *, deployment_id: str | None = None, cursor: str | None = None, limit: int | None = None) -> AgentPage:
        """A page of Agents; `limit` 1-100, 50 when omitted."""

class ApiKeys:
    """Keys by their ids. A token is told once, by the call that makes it."""

    def create(
        self, name: str, permissions: Sequence[str], *, expires_in: str | None = None, idempotency_key: str | None = None
    ) -> NewApiKey:
        """A new key with these permissions, at most the caller's own; `expires_in` is a duration such as "90d".

        The result has no `token` when the answer to an earlier attempt was lost: then revoke the key and make another one.
        Raises `Forbidden` for a permission that the caller lacks, `InvalidValue`.
        """

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> ApiKeyPage:
        """A page of keys, the newest first, ended ones too. `limit` 1-100, 50 when omitted."""

    def get(self, api_key_id: str) -> ApiKey:
        """What a key may, and until when. Raises `ApiKeyNotFound`."""

    def rotate(self, api_key_id: str, *, overlap: str | None = None, idempotency_key: str | None = None) -> NewApiKey:
        """A new key in the place of one, for the same principal. The old one is taken for `overlap` more ("1h"), or not at all.

        Raises `ApiKeyNotFound`, `ApiKeyEnded`, and `Forbidden` where it may more than the caller.
        """

    def revoke(self, api_key_id: str, *, idempotency_key: str | None = None) -> ApiKey:
        """Have a key taken no more, a second later at the latest; again changes nothing. Raises `ApiKeyNotFound`."""

class Audit:
    """What was accepted, with who asked for it: of the client's Environment, and, for admins, of the installation as a whole."""

    def list(
        self,
        *,
        by: str | None = None,
        operation: str | None = None,
        target: str | None = None,
        since: str | None = None,
        until: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> AuditPage:
        """A page of the Environment's entries, the newest first; needs `audit.read`. `limit` 1-100, 50 when omitted.

        Narrowed to one principal's (`by`, its id), to operations that begin with `operation` ("secrets."), to one `target` by its id, to
        times from `since` to before `until` (RFC 3339, with the offset). Raises `InvalidValue`, `InvalidCursor`.
        """

    def installation(
        self,
        *,
        by: str | None = None,
        what: str | None = None,
        since: str | None = None,
        until: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> InstallationLogPage:
        """A page of what people did to the installation: sign-ins, failed ones too, members, projects, Environments. For admins and owners.

        Narrowed as `list` is; `what` by its beginning. Raises `Forbidden`, `InvalidValue`, `InvalidCursor`.
        """

class CommandRef:
    """A Command by its id; making one sends nothing."""

    id: CommandId

    def get(self) -> Command:
        """The Command now. Raises `CommandNotFound`."""

    def wait(self, *, timeout: Duration | None = None) -> Command:
        """The Command once it has ended. Raises `RequestTimedOut` after `timeout`, which never cancels it.

        Waiting outlasts restarts of the server and broken connections, for `RetryPolicy.waiting_patience`.
        """

    def output(self, *, after: int = 0, follow: bool = True) -> Iterator[CommandOutput]:
        """What the Command has written after the chunk `after`; with `follow`, until it has ended and all was read."""

    def logs(self, *, after: int = 0, limit: int | None = None) -> CommandLogs:
        """A page of the output, as it is stored; what there is now."""

    def cancel(self, *, idempotency_key: str | None = None) -> CommandCancelReceipt:
        """End it: SIGTERM, ten seconds later SIGKILL. One that has ended stays as it is."""

class Commands:
    """Programs run on Computers of the Environment."""

    def ref(self, id: str) -> CommandRef:
        """A handle on a Command; sends nothing."""

    def get(self, id: str) -> Command:
        """A Command now. Raises `CommandNotFound`."""

    def list(self, computer_id: str, *, cursor: str | None = None, limit: int | None = None) -> CommandPage:
        """A page of a Computer's Commands, the newest first. Raises `ComputerNotFound`."""

class ComputerStream:
    """Bytes to and from something on a Computer. Close it, or use it with `async with`: what serves it there ends with it.

    Bounded: what isn't read here makes the other end wait, and `write` waits for the other end.
    """

    def read(self) -> bytes:
        """The next bytes, as they came; empty once the other end says no more. Raises `StreamBroken` when the way to it was lost."""

    def write(self, data: bytes) -> None:
        """Send bytes; returns once all have left. What is sent to an end that has closed is lost. Raises `StreamBroken`."""

    def write_eof(self) -> None:
        """Say that nothing more is sent; the other direction goes on."""

    def close(self) -> None:
        """End it. Idempotent."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

class Computers:
    """Computers by their ids. Receipts say where a Computer is or goes, not that it is there."""

    def create(
        self, template: str, *, key: str | None = None, secrets: Sequence[SecretBinding] = (), idempotency_key: str | None = None
    ) -> ComputerCreateReceipt:
        """A Computer of a Template of the current Deployment, for Sessions to be created on; it stays until `delete` [C1].

        `key` is unique within its Template until the Computer is deleted; `secrets` (`helmr.secret(...)`) come beside the Template's, or in
        the place of those of the same variable or file. Raises `TemplateNotFound`, `NoCurrentDeployment`, `SecretNotFound`,
        `ComputerKeyConflict` with the occupant's `computer_id`.
        """

    def get(self, id: str) -> Computer:
        """A Computer now, a deleted one too. Raises `ComputerNotFound`."""

    def list(
        self, *, status: Sequence[ComputerStatus] = (), template: str | None = None, cursor: str | None = None, limit: int | None = None
    ) -> ComputerPage:
        """A page of Computers, the newest first: without a `status` those that aren't deleted. `limit` 1-100, 50 when omitted."""

    def members(self, id: str, *, cursor: str | None = None, limit: int | None = None) -> SessionPage:
        """A page of a Computer's Sessions, closed ones too, the newest first."""

    def hibernate(self, id: str, *, idempotency_key: str | None = None) -> ComputerReceipt:
        """Put it to sleep now; the next Turn or `wake` wakes it. Raises `ComputerBusy` when somebody works on it [C6]."""

    def wake(self, id: str, *, idempotency_key: str | None = None) -> ComputerReceipt:
        """Have it run. Without a Turn it sleeps again after its Agents' `hibernate_after_idle`. Raises `CapacityUnavailable`."""

    def recover(self, id: str, *, idempotency_key: str | None = None) -> ComputerReceipt:
        """Try again one that failed, with the files that it has; its `error` says why it had. Raises `CapacityUnavailable`.

        Nothing changes on one on which nothing failed. Holds of its Sessions stay.
        """

    def save(self, id: str, *, idempotency_key: str | None = None) -> SaveReceipt:
        """Save its files now; `saves` shows what became of it. Raises `SaveUnavailable` when it is nowhere or on its way [C5]."""

    def saves(self, id: str, *, cursor: str | None = None, limit: int | None = None) -> SavePage:
        """A page of a Computer's saves, the newest first."""

    def delete(self, id: str, *, idempotency_key: str | None = None) -> ComputerReceipt:
        """Delete it with all its files, for good; again changes nothing. Raises `ComputerBusy` while a Session on it isn't closed [C9].

        The receipt says `deleting` until nothing of it is left on its host.
        """

    def shell(
        self,
        id: str,
        argv: Sequence[str] = (),
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Shell:
        """Open a shell, as soon as the Computer is awake: that of the image's user, or `argv`, on a terminal of its own [C8].

        It ends, with all that it started, when the connection does; its Computer stays awake meanwhile.
        """

    def connect(self, id: str, port: int) -> ComputerStream:
        """Connect to a port on the Computer's loopback, as soon as it is awake. Raises `PortRefused` when nothing listens there [C8]."""

    def read_file(self, id: str, path: str) -> Iterator[bytes]:
        """A file's bytes, piece by piece. Raises `PathNotFound`, `PathRefused`, and `ConnectionFailed` for one that broke off."""

    def write_file(self, id: str, path: str, content: bytes | Path, *, mode: int | None = None) -> CopyReceipt:
        """Write a file, or replace it: whole, or not at all. Without `mode` an old file keeps its own.

        Raises `PathNotFound`, `PathRefused`.
        """

    def download(self, id: str, path: str, target: Path) -> Copied:
        """Copy a file or folder of the Computer to `target`, or into it if that is a folder; links stay links, those that lead out of the
        copy are left out. Raises `PathNotFound`, `PathRefused`, `ArchiveError`, `OSError`."""

    def upload(self, id: str, source: Path, path: str) -> CopyReceipt:
        """Copy a file or folder to `path` on the Computer, or into it if that is a folder; each file is replaced whole or not at all.

        Raises `PathNotFound`, `PathRefused`, `OSError`.
        """

    def exec(
        self,
        id: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> CommandRef:
        """Run a program on it, as soon as it is awake; `argv` is the program and its arguments, and no shell takes part [C8].

        `timeout` is by default five minutes and at most a day. Raises `ComputerNotFound`, `ComputerDeleting`, `InvalidValue`.
        """

class Deployments:
    """`client.deployments`."""

    def get(self, id: str) -> Deployment:
        """A Deployment now: `building`, `deployed` or `failed`. Raises `DeploymentNotFound`."""

    def current(self) -> Deployment:
        """The one that new Sessions are pinned to. Raises `NoCurrentDeployment`."""

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> Page[Deployment]:
        """A page of Deployments, newest first; `limit` 1-100, 50 when omitted."""

    def diff(self, since: str, id: str) -> DeploymentDiff:
        """What the Deployment `id` has otherwise than the one of `since`: Agents, policies, triggers, Templates, files [D3]."""

    def promote(self, id: str, *, idempotency_key: str | None = None) -> Deployment:
        """Make it the current one; an older one too [D3]."""

    def log(self, id: str) -> Iterator[str]:
        """The build log in pieces, from the beginning until the build has ended.

        Raises `ConnectionFailed` when the connection breaks before that: the log is read again from its beginning.
        """

    def missing_blobs(self, digests: Sequence[str]) -> Sequence[str]:
        """Those that this Environment lacks."""

    def put_blob(self, digest: str, content: bytes | Path) -> None:
        """Store a blob under its SHA-256; storing it again changes nothing."""

    def create_deployment(
        self, manifest: Manifest, promote: bool = True, *, pull: bool = False, idempotency_key: str | None = None
    ) -> Deployment:
        """Publish a manifest whose blobs are all there; promoted once deployed, if asked. Same manifest and digests: same Deployment.

        Image tags mean what they meant when the Environment first met them; `pull` asks anew [A7], and raises `ImageFailed` when nobody
        can tell, `CapacityUnavailable` without a worker.
        """

class Environments:
    """Environments by their ids."""

    def list(self, *, project: str | None = None, cursor: str | None = None, limit: int | None = None) -> EnvironmentPage:
        """A page of Environments, of one project or of all, the newest first. `limit` 1-100, 50 when omitted."""

    def get(self, environment_id: str) -> Environment:
        """Raises `EnvironmentNotFound`."""

    def create(self, project: str, name: str, *, idempotency_key: str | None = None) -> Environment:
        """An Environment of the project with that name. Raises `Forbidden`, `ProjectNotFound`, `EnvironmentExists`, `InvalidValue`."""

    def limit(
        self,
        environment_id: str,
        *,
        admission_rate: str | None = None,
        admission_burst: int | None = None,
        payload_retention: str | None = None,
        computer_retention: str | None = None,
        trigger_computer_retention: str | None = None,
        trigger_grace: str | None = None,
        max_init_duration: str | None = None,
        idempotency_key: str | None = None,
    ) -> Environment:
        """Set limits; what is None stays as it is. The rate is a number of Sessions and Turns a second, or "unlimited"; the others are
        durations ("30d"), or "never" for what is kept. It acts at once. Raises `Forbidden`, `EnvironmentNotFound`, `InvalidValue`."""

class EventStream:
    """An async iterator over Events: each sequence once, in order, none left out.

    A broken or silent connection is opened again after the last Event that was taken in; what arrives twice is dropped, and after a gap
    the connection is not believed. It ends when the Session is closed and sealed. It gives up with `ConnectionFailed` only when the
    server stays out of reach for the retry policy's `waiting_patience`; a refusal is raised as its own class. `last_sequence` is where
    to go on later.

    Close it with `aclose()` or `async with` when leaving early.
    """

    last_sequence: int
    connections: int

    def __iter__(self) -> Self: ...
    def __next__(self) -> Event: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def close(self) -> None:
        """Close the connection. Idempotent; a later `anext` ends the iteration."""

class HelmrClient:
    """An asynchronous client; use it with `async with`, or call `close()`.

    Server and key come from the arguments, from HELMR_API_URL and HELMR_API_KEY, from what `helmr login` saved, or from a running
    `helmr dev`, in this order. The token of a person needs an `environment` ("project/environment"), from the argument, HELMR_ENVIRONMENT
    or the login; an API key implies its own, and is refused where another one is named. `timeout` bounds one attempt of a call, in
    seconds; `retry` says how often and how long it is repeated.
    Each write carries an idempotency key that its repetitions keep, so that a lost reply never makes two of it.

    Raises `ConfigurationMissing` when there is no server or no key. One client belongs to one event loop.
    """

    sessions: Sessions
    questions: Questions
    computers: Computers
    commands: Commands
    agents: Agents
    deployments: Deployments
    secrets: Secrets
    api_keys: ApiKeys
    members: Members
    audit: Audit
    projects: Projects
    environments: Environments
    triggers: Triggers
    workers: Workers

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        environment: str | None = None,
        timeout: float = 30.0,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None: ...
    @property
    def url(self) -> str:
        """The server's base URL."""

    def capabilities(self) -> Capabilities:
        """What this installation can do."""

    def myself(self) -> Myself:
        """Who one is signed in as. Raises `Unauthenticated` for an API key, which is no person."""

    def sign_out(self) -> None:
        """End the sign-in of the token that this client has. Raises `Unauthenticated` if it has ended, or is an API key."""

    def close(self) -> None:
        """Close all connections. Idempotent."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

class Members:
    """Members by their ids. Every member sees them; admins manage all but owners, owners everybody."""

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> MemberPage:
        """A page of members, the newest first. `limit` 1-100, 50 when omitted."""

    def get(self, member_id: str) -> Member:
        """Raises `MemberNotFound`."""

    def add(self, email: str, *, name: str, role: Role, idempotency_key: str | None = None) -> NewMember:
        """A new member. Give them `password_link`, which is told in this answer only and lasts a day.

        Raises `Forbidden`, `MemberExists`, `InvalidValue`.
        """

    def password_link(self, email: str) -> PasswordLink:
        """An address at which a member sets a new password, once, within a day; one that was made before is void. For them alone.

        Raises `MemberNotFound`, and `Forbidden` for a member of a higher role.
        """

    def change(
        self,
        member_id: str,
        *,
        name: str | None = None,
        role: Role | None = None,
        disabled: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Member:
        """Another name or role; `disabled` shuts a member out, and ends all their sign-ins. It acts at once.

        Raises `MemberNotFound`, `Forbidden`, and `LastOwner` where nobody would own the installation.
        """

    def remove(self, member_id: str, *, idempotency_key: str | None = None) -> Member:
        """Remove a member; what they did stays, under their id. Raises as `change`."""

class Projects:
    """Projects of the installation."""

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> ProjectPage:
        """A page of projects, the newest first. `limit` 1-100, 50 when omitted."""

    def create(self, name: str, *, idempotency_key: str | None = None) -> Project:
        """A project without Environments. Raises `Forbidden`, `ProjectExists`, `InvalidValue`."""

class Questions:
    """Questions by their own ids, whatever Session asked them."""

    def list(self, *, status: StatusFilter = "pending", cursor: str | None = None, limit: int | None = None) -> QuestionPage:
        """A page of the Environment's questions, the oldest first: those that wait for an answer, or with `status=None` all of them."""

    def get(self, id: str) -> QuestionState:
        """A question now. Raises `QuestionNotFound`."""

    def respond(self, id: str, answer: Answer, *, response_id: str | None = None, idempotency_key: str | None = None) -> QuestionReceipt:
        """Answer a pending question like `TurnRef.asks.respond`, after a look at whose it is."""

class Secrets:
    """Secrets by their names or ids. Nothing gives a value back."""

    def create(self, name: str, value: str, *, idempotency_key: str | None = None) -> Secret:
        """A new Secret; `value` is 1 byte to 64 KiB of text. What waits for one of that name goes on.

        Raises `SecretExists`, `InvalidValue`.
        """

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> SecretPage:
        """A page of Secrets, the newest first, revoked ones too. `limit` 1-100, 50 when omitted."""

    def get(self, secret: str) -> SecretDetails:
        """Its versions and times, which Templates bind it and which Computers have it now. Raises `SecretNotFound`."""

    def rotate(self, secret: str, value: str, *, idempotency_key: str | None = None) -> Secret:
        """Give it a new value, which Computers get at their next start. Raises `SecretNotFound`, `SecretRevoked`, `InvalidValue`."""

    def revoke(self, secret: str, *, idempotency_key: str | None = None) -> Secret:
        """Revoke it for good. From the reply on nothing new begins on Computers that have it; each is stopped once what runs there has
        ended [X2]. Its name is free. Raises `SecretNotFound`."""

class SessionEvents:
    """The timeline of one Session [E1]."""

    def list(self, *, after: int = 0, limit: int | None = None) -> EventPage:
        """One page of Events above `after`; `limit` 1-1000, 100 when omitted [E3]. Raises `InvalidCursor`, `CursorExpired`."""

    def stream(self, *, after: int = 0) -> EventStream:
        """Follow the timeline from `after` until the Session is closed and sealed [E4]."""

class SessionRef(Generic[I_contra, R_co]):
    """A Session by its id; making one sends nothing.

    Writes take an `idempotency_key`; without one each call makes its own, which its transport retries keep [S4].
    """

    id: SessionId
    turns: SessionTurns[R_co]
    events: SessionEvents

    def get(self) -> Session:
        """The Session now, its holds included."""

    def explain(self) -> Explanation:
        """Why it does what it does now, in one sentence, with the facts behind it [S23]."""

    def enqueue(self, input: I_contra, *, idempotency_key: str | None = None) -> TurnRef[R_co]:
        """Admit a new Turn, also while one runs and while held [S6]. Raises `SessionNotOpen`, `AdmissionUnavailable`."""

    def interrupt(self, *, idempotency_key: str | None = None) -> SessionInterruptReceipt:
        """Stop its running Turn and hold it and the Sessions it owns; the receipt names the hold [S16]."""

    def resume(self, *, hold_id: str, idempotency_key: str | None = None) -> SessionResumeReceipt:
        """Release exactly this hold, on the Session that `hold.session_id` names [S17]."""

    def close(self, *, idempotency_key: str | None = None) -> SessionStatusReceipt:
        """Refuse new Turns in the owned tree and close when the work that can run is done [S18]."""

    def cancel(self, *, idempotency_key: str | None = None) -> SessionStatusReceipt:
        """Cancel all running and queued Turns of the owned tree and close it at once [S19]."""

    def delete_data(self, *, idempotency_key: str | None = None) -> SessionDataReceipt:
        """Expire what was said in this Session, which must be closed; it can't be undone [S22]. Raises `SessionNotClosed`.

        Inputs, results, responses, messages, questions and answers go, and the timeline; Turns stay with ids, statuses and times.
        """

class SessionTurns(Generic[R_co]):
    """The Turns of one Session."""

    def ref(self, id: str) -> TurnRef[R_co]:
        """A handle on a Turn; sends nothing."""

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> TurnPage:
        """A page of Turns in admission order; `limit` 1-100, 50 when omitted."""

class Sessions:
    """`client.sessions`."""

    @overload
    def create(
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
    def create(
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
    def create(
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
    def create(
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
    def get(self, id: str) -> Session:
        """A Session now. Raises `SessionNotFound`."""

    @overload
    def list(self, *, agent: AgentDefinition[Any, Any] | str, key: str) -> SessionPage: ...
    @overload
    def list(
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
    def ref(self, id: str) -> SessionRef[Any, Any]:
        """A handle on a Session; sends nothing and claims no types."""

    def attach(self, *, id: str, agent: AgentDefinition[I, R], deployment_id: str) -> SessionRef[I, R]:
        """A typed handle on an existing Session, whose Agent and Deployment are checked.

        Raises `AgentMismatch`, `DeploymentMismatch`, `SessionNotFound`.
        """

class Shell(ComputerStream):
    """A program on a terminal of its own on a Computer; what is written is typed there."""

    def resize(self, rows: int, columns: int) -> None:
        """Tell the terminal its size."""

    def wait(self) -> int:
        """The exit code of the program once it has ended, 128 + its number for a signal. Whoever doesn't `read` makes it wait."""

class Triggers:
    """`client.triggers`: those of the current Deployment."""

    def get(self, agent: str, trigger: str) -> TriggerInfo:
        """One trigger: its schedule, what became of its last instant, its next five fires. Raises `TriggerNotFound`."""

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> TriggerPage:
        """A page of triggers, by Agent and id; `limit` 1-100, 50 when omitted."""

class TurnAsks:
    """The questions of one Turn."""

    def list(self, *, status: StatusFilter = None, cursor: str | None = None, limit: int | None = None) -> QuestionPage:
        """A page of the Turn's questions in the order in which they were asked; `limit` 1-100, 50 when omitted."""

    def get(self, id: str) -> QuestionState:
        """A question now. Raises `QuestionNotFound`."""

    def respond(self, id: str, answer: Answer, *, response_id: str | None = None, idempotency_key: str | None = None) -> QuestionReceipt:
        """Answer a pending question; the first answer stands [Q3].

        `response_id` names this one act of answering: given again with the same answer it gets the same receipt. Without one the call
        makes its own, which its transport retries keep. `text_answer` and `choice_answer` make answers.

        Raises `AnswerInvalid`, `QuestionAlreadyResponded`, `QuestionCancelled`.
        """

class TurnRef(Generic[R_co]):
    """A Turn by its ids; making one sends nothing. `sequence` is known when it came from a receipt."""

    session_id: SessionId
    id: TurnId
    sequence: int | None
    asks: TurnAsks

    def get(self) -> TurnState:
        """The Turn now."""

    @overload
    def wait(self) -> TurnOutcome[R_co]: ...
    @overload
    def wait(self, *, timeout: Duration) -> TimedTurnWaitResult[R_co]: ...
    def send(self, message: InputContent, *, idempotency_key: str | None = None) -> MessageReceipt:
        """Send a message to exactly this Turn, a list of text parts. Accepted is not delivered: the timeline records that [S7].

        Raises `MessageClosed` when it takes none now, `TypeError` for a str.
        """

    def interrupt(self, *, idempotency_key: str | None = None) -> TurnInterruptReceipt:
        """Interrupt this running Turn, without a hold [S15]. Raises `TurnNotRunning` or `TurnStopping`."""

class Workers:
    """Workers by their ids or their names."""

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> WorkerPage:
        """A page of the workers that serve the Environment, the newest first. `limit` 1-100, 50 when omitted."""

    def get(self, worker: str) -> WorkerDetails:
        """How a worker stands, and which of the Environment's Computers are with it. Raises `WorkerNotFound`."""

    def create_enrolment(
        self,
        *,
        name: str | None = None,
        driver: str | None = None,
        environments: Sequence[str] | None = None,
        expires_in: str | None = None,
        idempotency_key: str | None = None,
    ) -> NewWorkerEnrolment:
        """A token with which one worker is enrolled, once, within an hour (`expires_in`, at most "7d"), by `helmr worker enrol TOKEN`.

        It serves the `environments` named as project/environment, else all that the caller manages: a key's own, all for a person. With a
        `name` it also enrols the worker of that name again. The result has no `token` when the answer to an earlier attempt was lost: make
        another one. Raises `Forbidden`, `InvalidValue`.
        """

    def list_enrolments(self, *, cursor: str | None = None, limit: int | None = None) -> WorkerEnrolmentPage:
        """A page of the tokens of the last 30 days, without the tokens, the newest first. `limit` 1-100, 50 when omitted."""

    def revoke_enrolment(self, enrolment_id: str, *, idempotency_key: str | None = None) -> WorkerEnrolment:
        """Take a token no more. A worker that came of it stays: `remove` it. Raises `EnrolmentNotFound`."""

    def rotate(self, worker: str, *, idempotency_key: str | None = None) -> WorkerDetails:
        """Have an enrolled worker make itself a new credential; the old one is taken until the new one is used. No Turn is cut for it.

        Raises as `drain`, and `WorkerNotEnrolled`.
        """

    def drain(self, worker: str, *, idempotency_key: str | None = None) -> WorkerDetails:
        """Have a worker take nothing new, and save and put to sleep what is there, until `undrain`. Returns at once: `state` tells more.

        Raises `WorkerNotFound`, `WorkerRemoved`, and `Forbidden` where it serves other Environments, too.
        """

    def undrain(self, worker: str, *, idempotency_key: str | None = None) -> WorkerDetails:
        """Let a worker take what comes again. Raises as `drain`."""

    def remove(self, worker: str, *, force: bool = False, idempotency_key: str | None = None) -> WorkerDetails:
        """Drain a worker, then refuse it for good; with `force` at once. Its Computers are restored elsewhere from their saves.

        Without `force` it stays (`removing`) while something runs there, or has files there of which there is no save. Raises
        `WorkerNotFound`, and `Forbidden` as `drain`.
        """

__all__ = [
    "Agents",
    "ApiKeys",
    "Audit",
    "CommandRef",
    "Commands",
    "ComputerStream",
    "Computers",
    "Deployments",
    "Environments",
    "EventStream",
    "HelmrClient",
    "Members",
    "Projects",
    "Questions",
    "Secrets",
    "SessionEvents",
    "SessionRef",
    "SessionTurns",
    "Sessions",
    "Shell",
    "Triggers",
    "TurnAsks",
    "TurnRef",
    "Workers",
]
