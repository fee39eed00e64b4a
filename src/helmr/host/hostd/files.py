"""The durable files of a Computer, as saves and restores need them: where they are, as they are at a moment, and others in their place."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from helmr.host.hostd import failure
from helmr.host.hostd.computer import Computer
from helmr.host.hostd.records import Fence
from helmr.host.sandbox.driver import DurableFiles

Make = Callable[[DurableFiles, Path], Awaitable[None]]
"""Makes files of this kind at this path."""


async def files_of(computer: Computer) -> DurableFiles:
    """Where they are. The layout names the image's layers too: an overlay's upper folder fits those only."""
    found = await computer.driver.files(computer.record.spec)
    layers = hashlib.sha256("\n".join(computer.record.layers).encode()).hexdigest()[:16]
    return replace(found, layout=f"{found.layout}/{layers}") if computer.record.layers else found


async def hold_still(computer: Computer, fence: Fence, *, keep: bool) -> None:
    """Stop its processes until `let_go`; with `keep` also after that. One that doesn't run is left alone."""
    async with computer.exclusive:
        _check(computer, fence)
        if computer.record.running is not None and computer.is_running:
            computer.held = True
            await computer.driver.freeze(computer.record.spec, computer.record.running)
            if keep:
                computer.note(frozen=True, fence=fence)


async def let_go(computer: Computer) -> None:
    """What `hold_still` stopped goes on, if that was the only reason to stand still. Idempotent."""
    async with computer.exclusive:
        if computer.held:
            computer.held = False
            if computer.record.running is not None:
                await computer.go_on(computer.record.running)


async def replace_files(computer: Computer, fence: Fence, make: Make, *, new: bool) -> None:
    """Give it the files that `make` makes at a path, in place of its own, at once; a `new` one is removed if that fails.

    Its generation grows before [I9]: whatever memory was kept with the old files is of no use from then on.
    Raises `Refusal` while it runs, and what `make` raises.
    """
    async with computer.exclusive:
        _check(computer, fence)
        if computer.record.state != "stopped":
            raise failure.Busy(f"The Computer {computer.id} runs; its files are not replaced under it.")
        spec, generation = computer.record.spec, computer.record.generation + 1
        try:
            target = await computer.driver.prepare_files(spec)
            await make(await files_of(computer), target)
            if not new:  # the record of a new one is written at last: a crash leaves none that would start with half of its files
                computer.note(generation=generation)
            await computer.driver.place_files(spec)
        except BaseException:
            if new:
                computer.removed = True
                await asyncio.shield(computer.driver.destroy(spec))
            raise
        computer.note(fence=fence, generation=generation)
        computer.filled = True


def _check(computer: Computer, fence: Fence) -> None:
    computer.check_fence(fence)
    if computer.removed:
        raise failure.UnknownComputer(f"The Computer {computer.id} is being destroyed.")
