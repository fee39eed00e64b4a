"""Removing a state folder with all that it owns."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from helmr.host.hostd.client import HostdClient
from helmr.host.hostd.daemon import take_folder
from helmr.host.hostd.records import damaged, load_all
from helmr.host.hostd.saving import end_savers
from helmr.host.sandbox import crowds
from helmr.host.sandbox.bubblewrap import Bubblewrap
from helmr.host.sandbox.docker.driver import Docker, engine_of
from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.gvisor.driver import Gvisor
from helmr.host.sandbox.process import ProcessDriver
from helmr.host.sandbox.removal import remove_tree
from helmr.protocol.errors import AlreadyRunning

_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.02


async def clean(state: Path) -> int:
    """End every Computer of `state`, whoever started it, and remove the folder. A running hostd is asked to end first.

    Raises `AlreadyRunning` when that hostd doesn't answer. A missing folder is clean already.
    """
    if not state.exists():  # noqa: ASYNC240 - a stat or a small file, nothing that blocks
        return 0
    try:
        client = await HostdClient.connect(state / "hostd.sock")
    except OSError:
        pass  # none listens: its Computers may still run
    else:
        await client.shutdown(end_computers=True)
        async with asyncio.timeout(_STOP_SECONDS):
            await client.wait_closed()
        await client.close()
    lock = await _take(state)
    engine = engine_of(state)
    docker = Docker(state, engine=engine) if engine is not None else None
    try:
        await end_savers(state)
        found = [(record.spec, record.running) for record in load_all(state / "computers")]
        found += [(_spec(state, name), None) for name in damaged(state / "computers")]
        for spec, running in found:
            # By either driver's marks: which one made it is not worth a guess.
            for driver in (docker, Bubblewrap(state), Gvisor(state), ProcessDriver(state)):
                if driver is not None:
                    await driver.end(spec, running)
            await ProcessDriver(state).destroy(spec)
        if docker is not None:
            await docker.leave()
        await crowds.kill(lambda: crowds.mounting(f"{state}/"))
        await asyncio.to_thread(remove_tree, state)
    finally:
        os.close(lock)
    return 0


def _spec(state: Path, name: str) -> ComputerSpec:
    """Enough to find what there is of a Computer whose record can't be read."""
    return ComputerSpec(computer=name, environment="", folder=str(state / "computers" / name), host_base=True)


async def _take(state: Path) -> int:
    """The folder's lock. A hostd that is ending gives up its connections before that, so it is waited for."""
    for _ in range(int(_STOP_SECONDS / _LOOK_SECONDS)):
        try:
            return take_folder(state)
        except AlreadyRunning:
            await asyncio.sleep(_LOOK_SECONDS)
    return take_folder(state)
