"""Commands as their readers see them. SPEC [C8], 11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from helmr.protocol.ids import CommandId, ComputerId
from helmr.protocol.shapes import ErrorInfo
from helmr.protocol.states import CommandStatus, CommandStream
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program run on a Computer from outside [C8]. `exit_code` is 128 + `signal` when a signal ended it."""

    id: CommandId
    computer_id: ComputerId
    status: CommandStatus
    argv: tuple[str, ...]
    timeout: str
    created_at: str
    stdout_bytes: int
    stderr_bytes: int
    cwd: str | UnsetType = UNSET
    stopping: Literal["cancelled", "timed_out"] | UnsetType = UNSET
    """It is being ended: it has ten seconds from its SIGTERM."""
    exit_code: int | UnsetType = UNSET
    signal: int | UnsetType = UNSET
    error: ErrorInfo | UnsetType = UNSET
    started_at: str | UnsetType = UNSET
    ended_at: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPage:
    items: tuple[Command, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReceipt:
    id: CommandId
    computer_id: ComputerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCancelReceipt:
    id: CommandId
    status: Literal["accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandChunk:
    """Bytes of one stream, `at` so many from its beginning; the `lost` bytes right before `at` are not to be had."""

    sequence: int
    stream: CommandStream
    at: int
    lost: int
    data: str
    """Base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLogs:
    """Output in the order in which it was read. `next` is the `after` of the following page; `complete`: nothing comes after it."""

    items: tuple[CommandChunk, ...]
    next: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReceipt:
    """What was written on a Computer. `left_out`: what can't be copied, such as sockets; by name while there are few."""

    bytes: int
    entries: int
    left_out: tuple[str, ...] = ()
    more_left_out: int = 0
