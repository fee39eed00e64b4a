"""404: unknown, or of another Environment, which nobody can tell apart [O1]."""

from __future__ import annotations

from helmr.protocol.errors.root import Refused


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


class TriggerNotFound(Missing):
    """The current Deployment has no such trigger."""

    code = "trigger_not_found"
    hint = "`helmr trigger list` shows those of the current Deployment."


class DeploymentNotFound(Missing):
    """There is no such Deployment in this Environment."""

    code = "deployment_not_found"


class ComputerNotFound(Missing):
    """There is no such Computer in this Environment."""

    code = "computer_not_found"


class TemplateNotFound(Missing):
    """The Deployment has no such Template."""

    code = "template_not_found"


class CommandNotFound(Missing):
    """There is no such Command here."""

    code = "command_not_found"


class PathNotFound(Missing):
    """The Computer has no such file or folder."""

    code = "path_not_found"


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


class ObjectNotFound(Missing):
    """The object store has no such object."""

    code = "object_not_found"


class ApiKeyNotFound(Missing):
    """There is no such API key in this Environment."""

    code = "api_key_not_found"
    hint = "`helmr key list` shows the keys."


class WorkerNotFound(Missing):
    """There is no such worker for this Environment."""

    code = "worker_not_found"
    hint = "`helmr worker list` shows the workers."


class EnrolmentNotFound(Missing):
    """There is no such enrolment of a worker in this Environment."""

    code = "enrolment_not_found"
    hint = "`helmr worker tokens` shows those of the last 30 days."


class SecretNotFound(Missing):
    """There is no such Secret in this Environment."""

    code = "secret_not_found"
    hint = "`helmr secret list` shows the Secrets, `helmr secret create NAME` makes one."


class ProjectNotFound(Missing):
    """There is no such project."""

    code = "project_not_found"
    hint = "`helmr project list` shows those that there are."


class EnvironmentNotFound(Missing):
    """There is no such Environment for this credential."""

    code = "environment_not_found"
    hint = "It is named project/environment; an API key has one of its own."


class MemberNotFound(Missing):
    """There is no such member."""

    code = "member_not_found"


class UserCodeUnknown(Missing):
    """Nothing waits under this code; it is wrong, was decided, or is too old."""

    code = "user_code_unknown"
    hint = "Compare it with what the terminal shows, or run `helmr login` again."
