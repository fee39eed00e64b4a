"""The memory of a sleeping Computer: on disk where its driver can, else where it stands [C6], I9.

An image belongs to the disk as it was when it was written: to the Computer's generation, which each start, wake and restore raises. It is
gone on from once at most. Whatever hostd is killed in the middle of, the next one finds: the image unused, its processes, or neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.host.hostd.records import MemoryImage, Record
from helmr.host.sandbox.driver import Driver, NotRestored, Running
from helmr.host.sandbox.removal import remove_tree
from helmr.protocol.handing import SecretFile

FREEZE: Final = "freeze"
"""The rung of a Computer whose processes stand still in memory."""
IMAGE: Final = "image"
"""The rung of one whose memory is on disk: it has no process."""
KEPT: Final = ("memory", "files")
"""What either rung keeps."""

_log = structlog.get_logger("helmr.hostd.hibernating")


def rung(record: Record) -> str | None:
    """How it sleeps; None for one that doesn't."""
    if record.state == "hibernated":
        return IMAGE
    return FREEZE if record.frozen and record.state == "running" else None


async def write(driver: Driver, record: Record, running: Running, key: bytes | None) -> MemoryImage:
    """Write the image; its processes stand still then. Raises `Unfit`, `Unsupported`: then they go on."""
    await forget(record)
    made = await driver.hibernate(record.spec, running, folder(record), key)
    return MemoryImage(generation=record.generation, size=made.size, made_by=made.made_by, sealed=made.sealed)


async def read(driver: Driver, record: Record, key: bytes | None, files: Sequence[SecretFile]) -> Running:
    """Go on from the image. Raises `NotRestored`: then its memory is lost, and nothing of it runs."""
    image = record.image
    if image is None:
        raise NotRestored("There is no image of its memory.")
    if image.generation != record.generation:
        raise NotRestored(f"The image is of generation {image.generation}, and its files are of {record.generation}.")
    if image.sealed and key is None:
        raise NotRestored("The image is sealed, and there is no key to it.")
    return await driver.wake(record.spec, folder(record), image.made_by, used(record), key if image.sealed else None, files)


async def settled(driver: Driver, record: Record) -> Running | bool:
    """After a hostd was killed during a wake: its processes, or whether the image is unused."""
    found = await driver.found(record.spec)
    if found is not None:
        return found
    await driver.end(record.spec, None)
    return not used(record).exists() and folder(record).is_dir()


async def forget(record: Record) -> None:
    """Remove the image and all traces of its use. Idempotent."""
    await asyncio.to_thread(remove_tree, folder(record))
    used(record).unlink(missing_ok=True)


def folder(record: Record) -> Path:
    return Path(record.spec.folder) / "memory"


def used(record: Record) -> Path:
    """The file that is made right before the image is used."""
    return Path(record.spec.folder) / "memory.used"


def slept(rung: str, seconds: float, *, reason: str = "", image: MemoryImage | None = None, paged_out: int | None = None) -> dict[str, Any]:
    """The reply to a hibernate: how it sleeps, and why not better."""
    told: dict[str, Any] = {"rung": rung, "seconds": round(seconds, 6), "kept": list(KEPT)}
    if reason:
        told["reason"] = reason
        _log.info("computer.memory_stays", reason=reason)
    if image is not None:
        told["image_bytes"] = image.size
    if paged_out is not None:
        told["paged_out"] = paged_out
    return told
