"""Errors as RFC 9457 problem documents: the one place where an exception becomes a reply."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from helmr.protocol.errors import AuthoringError, HelmrError, MethodNotAllowed, PublishError, Unauthenticated
from helmr.protocol.wire import to_wire

PROBLEM_JSON = b"application/problem+json"
DEFAULT_RETRY_SECONDS = 1

_RESERVED = frozenset({"type", "title", "status", "code", "detail", "hint", "retryable", "request_id"})
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str)


def problem(error: HelmrError, request_id: str) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Status, body and extra headers of a refusal. Facts of the error are members of their own; they never replace a standard one."""
    status = status_of(error)
    members: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": error.code,
        "detail": error.detail,
        "hint": error.advice,
        "retryable": error.retryable,
        "request_id": request_id,
    }
    members.update((name, to_wire(value)) for name, value in error.facts.items() if name not in _RESERVED)
    body = _encoder.encode(members).encode("utf-8", errors="replace")
    return status, body, _headers(error, status)


def status_of(error: HelmrError) -> int:
    """The status of an error. What the SDK or publishing calls wrong is a wrong value when it arrives here (422)."""
    return 422 if isinstance(error, (AuthoringError, PublishError)) else error.status


def retry_seconds(error: HelmrError) -> int:
    """Whole seconds for Retry-After: the error's fact `retry_after` rounded up, at least one."""
    value = error.facts.get("retry_after")
    return max(1, math.ceil(value)) if isinstance(value, (int, float)) else DEFAULT_RETRY_SECONDS


def _headers(error: HelmrError, status: int) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, bytes]] = []
    if status in (429, 503):
        headers.append((b"retry-after", str(retry_seconds(error)).encode()))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b'Bearer realm="helmr"'))
    if isinstance(error, MethodNotAllowed) and (allow := error.facts.get("allow")):
        headers.append((b"allow", ", ".join(allow).encode()))
    return headers
