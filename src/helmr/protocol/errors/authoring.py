"""What the SDK raises in Agent code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from helmr.protocol.errors.root import HelmrError


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
