"""One operation of the API, declared: dispatch, checks, OpenAPI, the reference page and the tests are all made from this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from helmr.control.api.requests import Nothing
from helmr.protocol import errors, ids
from helmr.protocol.secrets import NAME_PATTERN, is_secret_name

if TYPE_CHECKING:
    from helmr.control.api.answers import Answer
    from helmr.control.api.call import Call

Access = Literal["key", "person", "worker", "public"]
"""Who may call: a principal (a bearer key, or a person in an Environment), a person, a worker's credential, anyone."""

Payload = Literal["json", "events", "bytes", "pieces", "text", "form", "page", "none"]
"""`pieces` are bytes of unknown length, as they come; a `form` is what a browser sends from a `page`."""

Handler = Callable[["Call[Any, Any]"], Awaitable["Answer"]]

JSON_BODY_BYTES = 2 * 1024 * 1024
"""The longest body unless a route says otherwise: a 256 KiB input even with every character escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`permission` is checked before anything is read; `errors` are those beyond what every route of its kind can answer."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    name: str
    summary: str
    handler: Handler
    tag: str
    access: Access = "key"
    permission: str | None = None
    query: type[Any] = Nothing
    open_query: bool = False
    """Whether others add to its query string, so that the handler reads what it knows, and the rest is ignored."""
    body: type[Any] | None = None
    takes: Payload = "none"
    body_bytes: int = JSON_BODY_BYTES
    answer: Any = None
    gives: Payload = "json"
    status: int = 200
    write: bool = False
    """Takes `Idempotency-Key`, and may answer `Idempotency-Replayed: true`."""
    errors: tuple[type[errors.HelmrError], ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parameters, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


@dataclass(frozen=True, slots=True)
class PathParameter:
    """What stands in a path: its form, and the error of a text without that form, which is the error of an unknown one [O1]."""

    fits: Callable[[str], bool]
    unknown: type[errors.Refused]
    schema: dict[str, Any]
    description: str


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(character in "0123456789abcdef" for character in text)


_ID: dict[str, Any] = {"type": "string", "format": "uuid"}
PATH_PARAMETERS: dict[str, PathParameter] = {
    "session_id": PathParameter(ids.is_id, errors.SessionNotFound, _ID, "The Session."),
    "turn_id": PathParameter(ids.is_id, errors.TurnNotFound, _ID, "The Turn, one of this Session."),
    "question_id": PathParameter(ids.is_id, errors.QuestionNotFound, _ID, "The question."),
    "computer_id": PathParameter(ids.is_id, errors.ComputerNotFound, _ID, "The Computer."),
    "command_id": PathParameter(ids.is_id, errors.CommandNotFound, _ID, "The Command."),
    "deployment_id": PathParameter(ids.is_id, errors.DeploymentNotFound, _ID, "The Deployment."),
    "agent": PathParameter(
        ids.is_definition_id, errors.AgentNotFound, {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}, "The Agent's id."
    ),
    "api_key_id": PathParameter(ids.is_id, errors.ApiKeyNotFound, _ID, "The API key, by its id; never the key itself."),
    "environment_id": PathParameter(ids.is_id, errors.EnvironmentNotFound, _ID, "The Environment, by its id."),
    "member_id": PathParameter(ids.is_id, errors.MemberNotFound, _ID, "The member, by their id."),
    "secret": PathParameter(
        is_secret_name, errors.SecretNotFound, {"type": "string", "pattern": f"^{NAME_PATTERN}$"}, "The Secret, by its name or its id."
    ),
    "trigger": PathParameter(
        ids.is_definition_id,
        errors.TriggerNotFound,
        {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
        "The trigger's id.",
    ),
    "worker": PathParameter(
        ids.is_definition_id,
        errors.WorkerNotFound,
        {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
        "The worker, by its name or its id.",
    ),
    "enrolment_id": PathParameter(ids.is_id, errors.EnrolmentNotFound, _ID, "The enrolment, by its id; never its token."),
    "worker_id": PathParameter(ids.is_id, errors.ObjectNotFound, _ID, "The worker that asks, by the id it was welcomed with."),
    "object": PathParameter(
        _is_digest, errors.ObjectNotFound, {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "BLAKE3 of the bytes, in lower-case hex."
    ),
    "code": PathParameter(
        lambda text: len(text) <= 128, errors.CodeInvalid, {"type": "string", "maxLength": 128}, "A one-time code; it tells nothing."
    ),
    "digest": PathParameter(
        _is_digest, errors.BlobNotFound, {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "SHA-256 of the bytes, in lower-case hex."
    ),
}


def possible_errors(route: Route) -> tuple[type[errors.HelmrError], ...]:
    """Every error that a route can answer: its own, and those of its access, parameters, query and body."""
    found: list[type[errors.HelmrError]] = [errors.InvalidRequest, errors.UnknownField]
    if route.access != "public":
        found.append(errors.Unauthenticated)
    if route.access in ("key", "person"):
        found.append(errors.OriginRefused)
    if route.access == "key":
        found += [errors.EnvironmentRequired, errors.EnvironmentNotFound]
    if route.permission is not None:
        found.append(errors.Forbidden)
    found += [PATH_PARAMETERS[name].unknown for name in route.parameters]
    if route.query is not Nothing or route.body is not None or route.takes == "bytes":
        found.append(errors.InvalidValue)
    if route.body is not None:
        found.append(errors.ContentInvalid)
    if route.takes != "none":
        found += [errors.RequestTooLarge, errors.RequestTooSlow]
    if route.write:
        found.append(errors.IdempotencyConflict)
    found += route.errors
    found += [errors.InternalError, errors.ShuttingDown]
    if route.access != "public":
        found.append(errors.DatabaseUnavailable)
    return tuple(sorted(dict.fromkeys(found), key=lambda kind: (kind.status, kind.code)))
