"""The roots that every error comes from."""

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
