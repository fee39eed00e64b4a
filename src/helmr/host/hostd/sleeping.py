"""Putting one Computer to sleep and waking it, by the strongest rung that its driver has [C6]. What is on disk: `hibernating.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from helmr.host.hostd import failure, hibernating
from helmr.host.hostd.records import Fence
from helmr.host.sandbox.driver import NotRestored, Running, Unfit, Unsupported
from helmr.host.sandbox.spawn import LaunchFailed
from helmr.protocol.handing import SecretFile

if TYPE_CHECKING:
    from helmr.host.hostd.computer import Computer

ANSWER_SECONDS: Final = 10.0
_PAUSE: Final = 0.01

_log = structlog.get_logger("helmr.hostd.sleeping")


async def hibernate(computer: Computer, fence: Fence, key: bytes | None) -> dict[str, Any]:
    """See `Computer.hibernate`. A save's moment is waited for: its files must not change meanwhile."""
    began = time.monotonic()
    while True:
        async with computer.exclusive:
            computer.check_fence(fence)
            if not computer.held:
                return await _hibernate(computer, fence, began, key)
        await asyncio.sleep(_PAUSE)


async def wake(computer: Computer, fence: Fence, key: bytes | None, files: Sequence[SecretFile] = ()) -> dict[str, Any]:
    """See `Computer.wake`."""
    began = time.monotonic()
    async with computer.exclusive:
        computer.check_fence(fence)
        rung = hibernating.FREEZE
        if computer.record.state == "hibernated":
            rung = hibernating.IMAGE
            if key is None and computer.record.image is not None and computer.record.image.sealed:
                raise failure.InvalidRequest('The memory is sealed: a wake needs its "key".')
            await restore(computer, fence, key, files)
        else:
            await computer.awaken(computer.running(), fence)
    return {"rung": rung, "seconds": round(time.monotonic() - began, 6)}


async def restore(computer: Computer, fence: Fence, key: bytes | None, files: Sequence[SecretFile]) -> None:
    """Go on from the image. Raises `MemoryNotRestored`: then the Computer is stopped. Under `exclusive`."""
    computer.note(state="waking", fence=fence)
    try:
        running = await hibernating.read(computer.driver, computer.record, key, files)
        _goes_on(computer, running)
        await computer.ways.open_egress()
        await computer.ways.answers(ANSWER_SECONDS)
    except (NotRestored, LaunchFailed, TimeoutError, Unsupported) as error:
        await computer.end_processes()
        await hibernating.forget(computer.record)
        computer.note(state="stopped", running=None, image=None)
        why = str(error) or "its supervisor did not answer."
        raise failure.MemoryNotRestored(f"The memory of {computer.id} is lost: {why}") from error
    await hibernating.forget(computer.record)


async def settle(computer: Computer) -> None:
    """After a hostd was killed during a wake. Under `exclusive`."""
    found = await hibernating.settled(computer.driver, computer.record)
    if isinstance(found, Running):
        _goes_on(computer, found)
        await hibernating.forget(computer.record)
    elif found:
        computer.note(state="hibernated")
    else:
        await hibernating.forget(computer.record)
        computer.note(state="stopped", running=None, image=None)
        _log.warning("computer.memory_lost", computer=computer.id)


async def _hibernate(computer: Computer, fence: Fence, began: float, key: bytes | None) -> dict[str, Any]:
    if computer.record.state == "hibernated":
        computer.note(fence=fence)
        return hibernating.slept(hibernating.IMAGE, 0.0, image=computer.record.image)
    running, driver, spec = computer.running(), computer.driver, computer.record.spec
    reason = "its worker's lease has ended"
    if not computer.lapsed:
        computer.ways.require_quiet()
        try:
            if computer.record.frozen and not driver.guests_connect:
                # Held by an earlier, weaker sleep, or by a save: memory can be written of one that answers only.
                await driver.thaw(spec, running)
                computer.note(frozen=False)
            await computer.ways.cut_all()
            image = await hibernating.write(driver, computer.record, running, key)
        except (Unfit, Unsupported) as error:
            reason = str(error)
        else:
            computer.note(state="hibernated", image=image, running=None, frozen=False, fence=fence)
            await driver.end(spec, running)
            await computer.ways.close()
            return hibernating.slept(hibernating.IMAGE, time.monotonic() - began, image=image)
    await computer.ways.stand_still()
    await driver.freeze(spec, running)
    computer.note(frozen=True, fence=fence)
    paged_out = await driver.page_out(spec, running)
    return hibernating.slept(hibernating.FREEZE, time.monotonic() - began, reason=reason, paged_out=paged_out)


def _goes_on(computer: Computer, running: Running) -> None:
    computer.note(state="running", running=running, image=None, generation=computer.record.generation + 1, frozen=False)
    computer.goes_on(running)
