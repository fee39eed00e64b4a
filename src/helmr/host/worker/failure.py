"""What is reported when the worker can't do what it was told: every handler's error becomes a code and a text, none is dropped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from helmr.host.worker.ports import HostdRefused
from helmr.protocol.errors import HelmrError
from helmr.protocol.wire import WireError

logger = structlog.get_logger("helmr.worker")

MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The `error` member of a report."""

    code: str
    message: str

    def to_wire(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message[:MESSAGE_CHARS]}


DRAINING = Failure(code="worker_draining", message="This worker is draining: it takes no new Computers and Sessions.")


def failure_of(error: Exception) -> Failure:
    """The report of an error; what isn't foreseen is `internal`."""
    match error:
        case HelmrError():
            return Failure(code=error.code, message=error.detail)
        case HostdRefused():
            return Failure(code=error.code, message=error.message)
        case WireError() | KeyError():
            return Failure(code="message_invalid", message=f"The control plane's message is malformed: {error}.")
        case OSError():
            return Failure(code="host_unavailable", message=f"The host failed: {error or type(error).__name__}.")
        case _:
            return Failure(code="internal", message=f"The worker failed: {type(error).__name__}: {error}")


def ending_of(notice: Mapping[str, Any]) -> str:
    """hostd's computer.exited, in words."""
    if notice.get("oom"):
        return "The Computer ran out of memory."
    for name in ("signal", "code"):
        if notice.get(name) is not None:
            return f"The Computer ended with {name} {notice[name]}."
    return "The Computer ended."


async def answered(work: Callable[[], Awaitable[None]], failed: Callable[[Failure], None], what: str, **facts: object) -> None:
    """Do `work`; tell `failed` when it raises. Only cancellation passes."""
    try:
        await work()
    except Exception as error:
        failure = failure_of(error)
        if failure.code == "internal":
            logger.exception("worker.handler_failed", what=what, **facts)
        else:
            logger.warning("worker.refused", what=what, code=failure.code, message=failure.message, **facts)
        failed(failure)
