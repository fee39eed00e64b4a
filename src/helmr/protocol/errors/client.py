"""What the client raises by itself, before or without an answer."""

from __future__ import annotations

from helmr.protocol.errors.root import HelmrError


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
