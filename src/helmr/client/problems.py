"""From the server's problem documents back to the exceptions that it raised. SPEC 11: one class for each code."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping
from typing import Any, cast

from helmr.protocol import jsontext
from helmr.protocol.errors import (
    Conflict,
    ContentInvalid,
    Forbidden,
    HelmrError,
    InternalError,
    Malformed,
    MethodNotAllowed,
    Missing,
    Refused,
    RequestTooLarge,
    Unauthenticated,
    Unavailable,
    UnreadableAnswer,
    by_code,
)

_KNOWN = by_code()
_NEAREST: Mapping[int, type[Refused]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: Missing,
    405: MethodNotAllowed,
    409: Conflict,
    410: Refused,
    413: RequestTooLarge,
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
_OWN_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "hint", "retryable", "self"})


def error_from(status: int, body: bytes, headers: Mapping[str, str]) -> HelmrError:
    """The exception for an answer that is no success.

    A declared code gives its own class; an unknown one (a newer server's) the nearest by status, with the code that was sent. `facts`
    has the document's further members, such as `request_id`, and `status` and `retry_after` (seconds) of the answer.
    """
    problem = _problem(body, headers)
    facts: dict[str, Any] = {name: member for name, member in problem.items() if name not in _OWN_MEMBERS and name.isidentifier()}
    facts["status"] = status
    wait = retry_after(headers.get("Retry-After"))
    if wait is not None:
        facts["retry_after"] = wait
    code = problem.get("code")
    if not isinstance(code, str):
        return _foreign(status, facts)
    kind = _KNOWN.get(code) or nearest(status)
    error = kind(_text(problem, "detail"), hint=_text(problem, "hint"), **facts)
    vars(error)["code"] = code
    if isinstance(problem.get("retryable"), bool):
        vars(error)["retryable"] = problem["retryable"]
    return error


def nearest(status: int) -> type[Refused]:
    """The class that a refusal with an undeclared code belongs to."""
    if status in _NEAREST:
        return _NEAREST[status]
    if status >= 500:
        return InternalError
    return Malformed if 400 <= status < 500 else Refused


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which names seconds or a date; None for none."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _problem(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    if "json" not in headers.get("Content-Type", ""):
        return {}
    try:
        value = jsontext.loads(body)
    except ContentInvalid:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _foreign(status: int, facts: dict[str, Any]) -> HelmrError:
    """An answer that no Helmr server wrote: a proxy's on the way, or another program's at that URL."""
    if status in (429, 502, 503, 504):
        return Unavailable(f"A server on the way answered {status}.", **facts)
    return UnreadableAnswer(f"The server answered {status} without a Helmr error document.", **facts)


def _text(problem: Mapping[str, Any], name: str) -> str | None:
    value = problem.get(name)
    return value if isinstance(value, str) else None
