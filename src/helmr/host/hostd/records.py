"""What hostd knows of its Computers, on disk, so that a hostd that was killed goes on where it was."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import structlog

from helmr.host.sandbox.driver import ComputerSpec, Running
from helmr.protocol.imageconfig import ImageConfig
from helmr.protocol.wire import WireError, from_wire, to_wire

Fence: TypeAlias = "int | list[Any]"
"""Opaque, and ordered: a number, or (incarnation, number) [I11]."""

State: TypeAlias = Literal["starting", "running", "stopped", "hibernated", "waking"]

_FILE: Final = "spec.json"
DAMAGED: Final = "spec.json.damaged"
"""What a record is renamed to that can't be read."""

_log = structlog.get_logger("helmr.hostd.records")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryImage:
    """The memory of a Computer, in its folder."""

    generation: int
    """Of the files that it goes with [I9]."""
    size: int
    made_by: str
    sealed: bool = False
    """Whether it opens with the control plane's key only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One Computer. `starting` on disk means: killed in the middle of a start, whatever runs of it is unknown and must end. `waking` means
    the same of a wake: `hibernating.settled` finds out. `hibernated` is one without a process, whose memory is in `image`."""

    spec: ComputerSpec
    fence: Any
    state: State
    template: Mapping[str, Any]
    layers: tuple[str, ...] = ()
    running: Running | None = None
    declared: ImageConfig = field(default_factory=ImageConfig)
    """What the base of its image declares: environment, working directory, user."""
    frozen: bool = False
    """Frozen by request; the watchdog's freezing is told by its leases."""
    generation: int = 0
    """Grows by one before each start and each restore, and at each wake: an image of memory is of use on the files of its own generation
    only [I9]."""
    image: MemoryImage | None = None

    @property
    def computer(self) -> str:
        return self.spec.computer


def save(record: Record) -> None:
    """Write it whole or not at all, and be sure that it is on disk."""
    write_durably(Path(record.spec.folder) / _FILE, json.dumps(to_wire(record), indent=1).encode())


def load_all(folder: Path) -> list[Record]:
    """The records of a state folder; folders without one are leftovers of an interrupted create.

    A record that can't be read keeps nobody else's from being: it is set aside, and its Computer is among the `damaged`.
    """
    found: list[Record] = []
    for path in sorted(folder.glob(f"[!.]*/{_FILE}")):
        try:
            record = from_wire(Record, json.loads(path.read_bytes()), str(path))
            if record.computer != path.parent.name:
                raise ValueError(f"it is of {record.computer}")
        except (ValueError, WireError) as error:
            aside = path.with_name(DAMAGED)
            path.replace(aside)
            _log.error("computer.record_damaged", computer=path.parent.name, record=str(aside), error=str(error))
        else:
            found.append(record)
    return found


def damaged(folder: Path) -> set[str]:
    """The Computers whose records were set aside, as long as no new one has taken the place."""
    return {path.parent.name for path in folder.glob(f"[!.]*/{DAMAGED}") if not path.with_name(_FILE).exists()}


def owner_of(folder: Path) -> int | None:
    """The range of host ids that the files of a Computer belong to which has lost its record; None where there is none."""
    try:
        owner = (folder / "disk/upper").stat().st_uid
    except FileNotFoundError:
        return None
    return owner if os.geteuid() == 0 and owner else None


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` atomically; after the return neither a crash nor a power loss brings the old content back."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def boot_seconds() -> float:
    """Seconds since boot, counting time asleep: what a lease is measured in, so that it goes on over a restart of hostd."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)
