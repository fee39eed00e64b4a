"""Refusals of hostd, each with a stable code."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """A request is refused; nothing changed. Raise a subclass."""

    code = "internal"

    def __init__(self, message: str, **facts: Any) -> None:
        self.message = message
        self.facts = facts
        super().__init__(f"{message} ({self.code})")


class InvalidRequest(Refusal):
    code = "invalid_request"


class UnknownMethod(Refusal):
    code = "unknown_method"


class UnknownComputer(Refusal):
    code = "computer_not_found"


class NotRunning(Refusal):
    code = "computer_not_running"


class Busy(Refusal):
    code = "computer_busy"


class FenceStale(Refusal):
    code = "fence_stale"


class HistorySuperseded(Refusal):
    code = "history_superseded"


class Mismatch(Refusal):
    code = "computer_mismatch"


class BaseMismatch(Refusal):
    code = "base_mismatch"


class LayersMissing(Refusal):
    code = "layers_missing"


class SupervisorSilent(Refusal):
    code = "supervisor_silent"


class LaunchRefused(Refusal):
    code = "launch_failed"


class MemoryNotRestored(Refusal):
    code = "memory_not_restored"


class NotSupported(Refusal):
    code = "unsupported"


class BundleInvalid(Refusal):
    code = "bundle_invalid"


class Stopping(Refusal):
    code = "hostd_stopping"


class SaveFailed(Refusal):
    code = "save_failed"


class SaveRefused(Refusal):
    """What the process of a save or restore was refused by; `code` is that error's own."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)
