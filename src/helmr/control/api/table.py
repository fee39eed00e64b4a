"""The route table: every operation of the HTTP API, in the order of the reference."""

from __future__ import annotations

import re
from collections.abc import Callable

from helmr.control.api.agents import AGENT_ROUTES
from helmr.control.api.api_keys import API_KEY_ROUTES
from helmr.control.api.audit import AUDIT_ROUTES
from helmr.control.api.auth import AUTH_ROUTES
from helmr.control.api.auth_pages import AUTH_PAGE_ROUTES
from helmr.control.api.commands import COMMAND_ROUTES
from helmr.control.api.computers import COMPUTER_ROUTES
from helmr.control.api.deployments import DEPLOYMENT_ROUTES
from helmr.control.api.enrolments import ENROLMENT_ROUTES
from helmr.control.api.environments import ENVIRONMENT_ROUTES
from helmr.control.api.events import EVENT_ROUTES
from helmr.control.api.files import FILE_ROUTES
from helmr.control.api.members import MEMBER_ROUTES
from helmr.control.api.provider_pages import PROVIDER_ROUTES
from helmr.control.api.questions import QUESTION_ROUTES
from helmr.control.api.route import Route
from helmr.control.api.saves import SAVE_ROUTES, WORKER_OBJECT_ROUTES
from helmr.control.api.secrets import SECRET_ROUTES
from helmr.control.api.services import Vitals
from helmr.control.api.sessions import SESSION_ROUTES
from helmr.control.api.system import system_routes
from helmr.control.api.triggers import TRIGGER_ROUTES
from helmr.control.api.turns import TURN_ROUTES
from helmr.control.api.workers import WORKER_ROUTES

WORKER_LINK_PATH = "/v1/workers/link"
"""A WebSocket for workers. Like the next it is no request with a reply, and so not in the table."""

STREAM_PATH = re.compile("/v1/computers/([^/]+)/(shell|forward)")
"""A WebSocket for a client's shell or tunnel."""


def is_socket_path(path: bytes) -> bool:
    """Whether a handshake to this path is heard; anywhere else the wish to upgrade is ignored."""
    text = path.decode("latin-1")
    return text == WORKER_LINK_PATH or STREAM_PATH.fullmatch(text) is not None


def route_table(describe: Callable[[], bytes], metrics: Callable[[Vitals], bytes]) -> tuple[Route, ...]:
    """All routes; the two functions give the API document and the metrics."""
    return (
        *SESSION_ROUTES,
        *TURN_ROUTES,
        *QUESTION_ROUTES,
        *EVENT_ROUTES,
        *COMPUTER_ROUTES,
        *COMMAND_ROUTES,
        *SAVE_ROUTES,
        *FILE_ROUTES,
        *AGENT_ROUTES,
        *DEPLOYMENT_ROUTES,
        *SECRET_ROUTES,
        *API_KEY_ROUTES,
        *TRIGGER_ROUTES,
        *ENROLMENT_ROUTES,
        *WORKER_ROUTES,
        *WORKER_OBJECT_ROUTES,
        *ENVIRONMENT_ROUTES,
        *MEMBER_ROUTES,
        *AUDIT_ROUTES,
        *AUTH_ROUTES,
        *AUTH_PAGE_ROUTES,
        *PROVIDER_ROUTES,
        *system_routes(describe, metrics),
    )


def declared_routes() -> tuple[Route, ...]:
    """All routes as declarations, for documents and tests."""
    return route_table(bytes, lambda _: b"")
