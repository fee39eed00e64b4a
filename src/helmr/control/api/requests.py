"""The bodies and query strings that the API takes. A member that may be absent is `UNSET` (or its default) when it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from helmr.control.api.constraints import AtMost, Between, Bytes, Id, Matches, Wait
from helmr.protocol import limits
from helmr.protocol.secrets import NAME_PATTERN, ORIGINS
from helmr.protocol.states import ComputerStatus, QuestionStatus, SessionStatus
from helmr.protocol.unset import UNSET, UnsetType

LONGEST_WAIT_SECONDS = 60
LARGEST_SEQUENCE = 2**53 - 1
DIGESTS = 10_000
CURSOR_BYTES = 2048

AgentId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "an Agent's id")]
AnyId = Annotated[str, Id()]
TemplateId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "a Template's id")]
Key = Annotated[str, Bytes(1, limits.KEY_BYTES)]
ResponseId = Annotated[str, Bytes(1, limits.RESPONSE_ID_BYTES)]
SecretName = Annotated[str, Matches(NAME_PATTERN, "a Secret's name")]
SecretValue = Annotated[str, Bytes(1, limits.SECRET_BYTES)]
Digest = Annotated[str, Matches("[0-9a-f]{64}", "a SHA-256 in lower-case hex")]
ComputerPath = Annotated[str, Matches(r"[^\0]{1,1000}", "a path on the Computer")]
LabelText = Annotated[str, Bytes(1, limits.LABEL_BYTES)]
Cursor = Annotated[str, Bytes(1, CURSOR_BYTES)]
Limit = Annotated[int, Between(1, limits.PAGE_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """No members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerChoice:
    id: AnyId


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackChannel:
    channel_id: Annotated[str, Bytes(1, 64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSession:
    """Without `input` no Turn is admitted; an `input` of null is an input [S1]."""

    agent: AgentId
    input: Any = UNSET
    key: Key | UnsetType = UNSET
    computer: ComputerChoice | UnsetType = UNSET
    slack: SlackChannel | UnsetType = UNSET
    labels: Annotated[Mapping[LabelText, LabelText], AtMost(limits.LABELS)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class BindSecret:
    """A Secret as the variable `env` or the file `file`; a `protected` one as a placeholder that the proxy exchanges [X1]."""

    name: SecretName
    env: Annotated[str, Bytes(1, 128)] | UnsetType = UNSET
    file: Annotated[str, Bytes(2, 1000)] | UnsetType = UNSET
    mode: Literal["raw", "protected"] = "raw"
    allowed_origins: Annotated[tuple[Annotated[str, Bytes(1, 300)], ...], AtMost(ORIGINS)] = ()
    headers: Annotated[tuple[Annotated[str, Bytes(1, 128)], ...], AtMost(16)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateComputer:
    """`template` is one of the current Deployment; `key` names the Computer within it until that is deleted [C1]. `secrets` come beside
    the Template's, or in the place of those of the same variable or file."""

    template: TemplateId
    key: Key | UnsetType = UNSET
    secrets: Annotated[tuple[BindSecret, ...], AtMost(limits.SECRET_BINDINGS)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSecret:
    """`value` is never told again."""

    name: SecretName
    value: SecretValue


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateSecret:
    value: SecretValue


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateApiKey:
    """`permissions` are at most the caller's own; `expires_in` is a duration such as "90d"."""

    name: Annotated[str, Bytes(1, 128)]
    permissions: Annotated[tuple[Annotated[str, Bytes(1, 64)], ...], AtMost(64)]
    expires_in: Annotated[str, Bytes(2, 32)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateApiKey:
    """For `overlap` the old key is taken, too; without, it is not."""

    overlap: Annotated[str, Bytes(2, 32)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveWorker:
    """With `force` at once, whatever runs there or has no save."""

    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWorkerEnrolment:
    """`environments` are named as project/environment; without, the worker serves all that the caller manages. `expires_in`: "1h"."""

    name: Annotated[str, Bytes(1, 128)] | UnsetType = UNSET
    driver: Literal["bubblewrap", "gvisor", "docker", "process"] | UnsetType = UNSET
    environments: Annotated[tuple[Annotated[str, Bytes(3, 257)], ...], AtMost(64)] | UnsetType = UNSET
    expires_in: Annotated[str, Bytes(2, 32)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolWorker:
    """`credential_hash` is of what the worker will present, which it keeps for itself."""

    token: Annotated[str, Bytes(1, 128)]
    credential_hash: Digest
    name: Annotated[str, Bytes(1, 128)] | UnsetType = UNSET
    driver: Annotated[str, Bytes(1, 32)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueTurn:
    input: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage:
    content: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RespondQuestion:
    """`response_id` names this one act of answering: the same with the same answer gets the same receipt [Q3]."""

    answer: Any
    response_id: ResponseId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSession:
    """`hold_id` names one hold on this Session [S17]."""

    hold_id: AnyId


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBlobsQuestion:
    digests: Annotated[tuple[Digest, ...], AtMost(DIGESTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDeployment:
    """`pull` asks anew what the images' tags name [A7]."""

    manifest: Mapping[str, Any]
    promote: bool = True
    pull: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """Either an exact lookup (`agent` with `key`, nothing else), or filters with pages [S3]."""

    agent: AgentId | UnsetType = UNSET
    key: Key | UnsetType = UNSET
    parent_session_id: AnyId | UnsetType = UNSET
    requester_session_id: AnyId | UnsetType = UNSET
    status: tuple[SessionStatus, ...] = ()
    label: tuple[Annotated[str, Matches(r"[^:]+:[\s\S]*", "a label as name:value")], ...] = ()
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = limits.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = limits.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerQuery:
    """Without a status: those that aren't deleted."""

    status: tuple[ComputerStatus, ...] = ()
    template: TemplateId | UnsetType = UNSET
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = limits.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionQuery:
    status: tuple[QuestionStatus, ...] = ()
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = limits.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuery:
    """`wait` holds the reply back until the Turn has settled, at most so long."""

    wait: Annotated[str, Wait(LONGEST_WAIT_SECONDS)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    after: Annotated[int, Between(0, LARGEST_SEQUENCE)] = 0
    limit: Annotated[int, Between(1, limits.EVENTS_PAGE_MAX)] = limits.EVENTS_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamQuery:
    after: Annotated[int, Between(0, LARGEST_SEQUENCE)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """A program and its arguments, the program first; `cwd` is by default the image's working directory; `stdin` is base64 [C8]."""

    argv: Annotated[tuple[str, ...], AtMost(limits.COMMAND_ARGUMENTS)]
    cwd: str | UnsetType = UNSET
    env: Mapping[str, str] | UnsetType = UNSET
    stdin: str | UnsetType = UNSET
    timeout: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandQuery:
    """`wait` holds the reply back until the Command has ended, at most so long."""

    wait: Annotated[str, Wait(LONGEST_WAIT_SECONDS)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLogQuery:
    """`wait` holds an empty page back until there is output, or none comes any more, at most so long."""

    after: Annotated[int, Between(0, LARGEST_SEQUENCE)] = 0
    limit: Annotated[int, Between(1, limits.EVENTS_PAGE_MAX)] = limits.EVENTS_PAGE
    wait: Annotated[str, Wait(LONGEST_WAIT_SECONDS)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFilesQuery:
    """`path` from the image's working directory, if it isn't absolute. `form`: a file's bytes, or an archive (tar) of what is there."""

    path: ComputerPath
    form: Literal["file", "tree"] = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFilesQuery:
    """As above. A `tree` is put in the place of `path`, whose folder must be there; `mode` (decimal) is that of a new or replaced file.
    With `name`, what is written goes into `path` under that name if `path` is a folder."""

    path: ComputerPath
    form: Literal["file", "tree"] = "file"
    name: Annotated[str, Matches(r"(?!\.{1,2}\Z)[^\0/]{1,255}", "the name of a file")] | UnsetType = UNSET
    mode: Annotated[int, Between(0, 0o777)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardQuery:
    port: Annotated[int, Between(1, 65535)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShell:
    """The first message of a shell's client. Without `argv` it is the shell of the image's user."""

    t: Literal["open"]
    rows: Annotated[int, Between(1, 10_000)] = 24
    columns: Annotated[int, Between(1, 10_000)] = 80
    argv: tuple[str, ...] = ()
    cwd: str | UnsetType = UNSET
    env: Mapping[str, str] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentQuery:
    deployment_id: AnyId | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffQuery:
    """The Deployment to compare with."""

    since: AnyId


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPageQuery:
    deployment_id: AnyId | UnsetType = UNSET
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = limits.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobQuery:
    """The Environment whose Computer needs the blob."""

    environment: AnyId
