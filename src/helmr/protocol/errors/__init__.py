"""Every error with a stable code, declared once: server, client, guest and docs share this tree.

    HelmrError
    ├── Refused              the request reached the system, which said no
    │   ├── Malformed            400, 413, 422: mend the request
    │   ├── Unauthorized         401, 403
    │   ├── Missing              404: unknown, or of another Environment [O1]
    │   ├── Conflict             409: the state forbids it now
    │   ├── Gone                 410
    │   └── Unavailable          429, 503: try again
    ├── AuthoringError       raised in Agent code by the SDK
    ├── PublishError         a project that can't be deployed
    ├── SetupError           this machine, or its configuration, can't run what was asked
    └── ClientError          raised by the client alone, before or without an answer

The docstring of a class is its default message; `hint` says what to do. One module for each branch; all is imported from here.
"""

from __future__ import annotations

# ruff: noqa: I001  (the order of the imports is the order of the tree, which the table of the docs follows)
from helmr.protocol.errors.root import HelmrError, InternalError, Refused
from helmr.protocol.errors.requests import (
    AnswerInvalid,
    ContentInvalid,
    ContentKindUnsupported,
    ContentLimitExceeded,
    DigestMismatch,
    EnvironmentRequired,
    InputEmpty,
    InvalidCursor,
    InvalidRequest,
    InvalidValue,
    ListingInvalid,
    Malformed,
    RequestTooLarge,
    RequestTooSlow,
    RootSessionRequired,
    UnknownField,
)
from helmr.protocol.errors.access import (
    AccessDenied,
    AuthorizationPending,
    DeviceCodeExpired,
    Forbidden,
    OriginRefused,
    ProviderRefused,
    SignInRefused,
    SlowDown,
    Unauthenticated,
    Unauthorized,
)
from helmr.protocol.errors.missing import (
    AgentNotFound,
    ApiKeyNotFound,
    BlobNotFound,
    CommandNotFound,
    ComputerNotFound,
    DeploymentNotFound,
    EnvironmentNotFound,
    HoldNotFound,
    MemberNotFound,
    MethodNotAllowed,
    Missing,
    ObjectNotFound,
    PathNotFound,
    QuestionNotFound,
    RouteNotFound,
    SecretNotFound,
    SessionNotFound,
    TemplateNotFound,
    TriggerNotFound,
    TurnNotFound,
    UserCodeUnknown,
    WorkerNotFound,
)
from helmr.protocol.errors.conflicts import (
    ApiKeyEnded,
    BaseMismatch,
    CapacityWaitBlocked,
    ChannelUnavailable,
    CodeInvalid,
    ComputerBusy,
    ComputerDeleting,
    ComputerKeyConflict,
    ComputerMismatch,
    Conflict,
    CursorExpired,
    DelegationLimit,
    HoldNotReleasable,
    IdempotencyConflict,
    MessageClosed,
    NoCurrentDeployment,
    PathRefused,
    PortRefused,
    QuestionAlreadyResponded,
    QuestionCancelled,
    SaveDamaged,
    SecretExists,
    SecretRevoked,
    SecretUnavailable,
    SessionKeyConflict,
    SessionNotClosed,
    SessionNotOpen,
    SetUpAlready,
    SignInNotOffered,
    TurnNotRunning,
    TurnStopping,
    WorkerRemoved,
)
from helmr.protocol.errors.unavailable import (
    AdmissionUnavailable,
    BlobCollected,
    CapacityUnavailable,
    ComputerUnreachable,
    DatabaseUnavailable,
    ProviderUnavailable,
    SaveUnavailable,
    SecretsUnavailable,
    ShuttingDown,
    SignInBusy,
    StorageFull,
    StreamBroken,
    StreamsExhausted,
    TooManyAttempts,
    Unavailable,
)
from helmr.protocol.errors.authoring import (
    AskCancelled,
    AuthoringError,
    McpPolicyError,
    MessageHandlerRegistered,
    MessageRejected,
    RegistrationClosed,
    ResponseAlreadyStaged,
    SchemaError,
    TurnCancelled,
    TurnSettling,
)
from helmr.protocol.errors.publishing import DefinitionInvalid, ImageFailed, ImageUnsupported, ImportFailed, PublishError
from helmr.protocol.errors.machine import (
    AlreadyRunning,
    FolderUnusable,
    MasterKeyMismatch,
    MasterKeyUnusable,
    MigrationFailed,
    NotConfigured,
    ObjectStoreUnusable,
    PortInUse,
    PostgresFailed,
    PostgresMissing,
    PostgresVersionMismatch,
    SetupError,
    SpoolUnsafe,
)
from helmr.protocol.errors.client import (
    AgentMismatch,
    ClientError,
    ConfigurationMissing,
    ConnectionFailed,
    DeploymentMismatch,
    RequestTimedOut,
    UnreadableAnswer,
)

__all__ = [
    "AccessDenied",
    "AdmissionUnavailable",
    "AgentMismatch",
    "AgentNotFound",
    "AlreadyRunning",
    "AnswerInvalid",
    "ApiKeyEnded",
    "ApiKeyNotFound",
    "AskCancelled",
    "AuthoringError",
    "AuthorizationPending",
    "BaseMismatch",
    "BlobCollected",
    "BlobNotFound",
    "CapacityUnavailable",
    "CapacityWaitBlocked",
    "ChannelUnavailable",
    "ClientError",
    "CodeInvalid",
    "CommandNotFound",
    "ComputerBusy",
    "ComputerDeleting",
    "ComputerKeyConflict",
    "ComputerMismatch",
    "ComputerNotFound",
    "ComputerUnreachable",
    "ConfigurationMissing",
    "Conflict",
    "ConnectionFailed",
    "ContentInvalid",
    "ContentKindUnsupported",
    "ContentLimitExceeded",
    "CursorExpired",
    "DatabaseUnavailable",
    "DefinitionInvalid",
    "DelegationLimit",
    "DeploymentMismatch",
    "DeploymentNotFound",
    "DeviceCodeExpired",
    "DigestMismatch",
    "EnvironmentNotFound",
    "EnvironmentRequired",
    "FolderUnusable",
    "Forbidden",
    "HelmrError",
    "HoldNotFound",
    "HoldNotReleasable",
    "IdempotencyConflict",
    "ImageFailed",
    "ImageUnsupported",
    "ImportFailed",
    "InputEmpty",
    "InternalError",
    "InvalidCursor",
    "InvalidRequest",
    "InvalidValue",
    "ListingInvalid",
    "Malformed",
    "MasterKeyMismatch",
    "MasterKeyUnusable",
    "McpPolicyError",
    "MemberNotFound",
    "MessageClosed",
    "MessageHandlerRegistered",
    "MessageRejected",
    "MethodNotAllowed",
    "MigrationFailed",
    "Missing",
    "NoCurrentDeployment",
    "NotConfigured",
    "ObjectNotFound",
    "ObjectStoreUnusable",
    "OriginRefused",
    "PathNotFound",
    "PathRefused",
    "PortInUse",
    "PortRefused",
    "PostgresFailed",
    "PostgresMissing",
    "PostgresVersionMismatch",
    "ProviderRefused",
    "ProviderUnavailable",
    "PublishError",
    "QuestionAlreadyResponded",
    "QuestionCancelled",
    "QuestionNotFound",
    "Refused",
    "RegistrationClosed",
    "RequestTimedOut",
    "RequestTooLarge",
    "RequestTooSlow",
    "ResponseAlreadyStaged",
    "RootSessionRequired",
    "RouteNotFound",
    "SaveDamaged",
    "SaveUnavailable",
    "SchemaError",
    "SecretExists",
    "SecretNotFound",
    "SecretRevoked",
    "SecretUnavailable",
    "SecretsUnavailable",
    "SessionKeyConflict",
    "SessionNotClosed",
    "SessionNotFound",
    "SessionNotOpen",
    "SetUpAlready",
    "SetupError",
    "ShuttingDown",
    "SignInBusy",
    "SignInNotOffered",
    "SignInRefused",
    "SlowDown",
    "SpoolUnsafe",
    "StorageFull",
    "StreamBroken",
    "StreamsExhausted",
    "TemplateNotFound",
    "TooManyAttempts",
    "TriggerNotFound",
    "TurnCancelled",
    "TurnNotFound",
    "TurnNotRunning",
    "TurnSettling",
    "TurnStopping",
    "Unauthenticated",
    "Unauthorized",
    "Unavailable",
    "UnknownField",
    "UnreadableAnswer",
    "UserCodeUnknown",
    "WorkerNotFound",
    "WorkerRemoved",
    "by_code",
    "declared",
]


def declared() -> list[type[HelmrError]]:
    """Every declared error, in the order of the tree; the docs and the client are made from it."""
    found: list[type[HelmrError]] = []

    def walk(kind: type[HelmrError]) -> None:
        for child in kind.__subclasses__():
            if child.__module__.startswith(f"{__name__}."):
                found.append(child)
                walk(child)

    walk(HelmrError)
    return found


def by_code() -> dict[str, type[HelmrError]]:
    """The class for each code: the most specific one that declares it."""
    table: dict[str, type[HelmrError]] = {}
    for kind in declared():
        if "code" in vars(kind) and kind.code not in table:
            table[kind.code] = kind
    return table
