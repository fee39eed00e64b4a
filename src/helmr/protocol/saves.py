"""Saves of Computers as they stand on the wire [C5]."""

from __future__ import annotations

from dataclasses import dataclass

from helmr.protocol.ids import ComputerId, SaveId
from helmr.protocol.shapes import ErrorInfo, Page
from helmr.protocol.states import SaveCause, SaveState
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A save of a Computer's files [C5]. `started_at` is the instant of which it has all that had settled; sizes in bytes."""

    id: SaveId
    computer_id: ComputerId
    state: SaveState
    cause: SaveCause
    started_at: str
    completed_at: str | UnsetType = UNSET
    files: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    new_bytes: int | UnsetType = UNSET
    """What it added to the object store, compressed."""
    error: ErrorInfo | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePage(Page[Save]):
    items: tuple[Save, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReceipt:
    """A save is being taken: a new one, or the one that was under way."""

    computer_id: ComputerId
    save_id: SaveId
