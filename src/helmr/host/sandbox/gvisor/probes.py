"""What gVisor can do on this host, found by doing it once, each step under a time-out [C2], [C6].

A sandbox costs a second, so what was found is kept in the state folder (`tried.py`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmr.host.sandbox.driver import ComputerSpec, NotRestored, Probe, Running, Unfit
from helmr.host.sandbox.gvisor.binary import REMEDY, find_runsc, processor, version
from helmr.host.sandbox.gvisor.inside import DOOR
from helmr.host.sandbox.gvisor.runsc import RunscFailed
from helmr.host.sandbox.interior import PYTHON_BINARY
from helmr.host.sandbox.probes import ProbeFailed, attempt
from helmr.host.sandbox.tried import Tried, identity_of, kept

if TYPE_CHECKING:
    from helmr.host.sandbox.gvisor.driver import Gvisor

SECONDS: Final = 20.0
_DRIVER: Final = "gvisor"
_DELETED: Final = "deleted open files"
_OLD: Final = "Use a later runsc than this one."

_RESIDENT: Final = f"""\
import os, select, socket
os.makedirs(os.path.dirname({DOOR!r}), exist_ok=True)
door = socket.socket(socket.AF_UNIX)
door.bind({DOOR!r})
door.listen()
held = None
while True:
    guest, _ = door.accept()
    with guest, socket.socket(fileno=socket.recv_fds(guest, 64, 1)[1][0]) as stream:
        guest.send(b"+")
        stream.setblocking(False)
        while True:
            select.select([stream], [], [])
            word = stream.recv(100)
            if word == b"hold":
                held = open("/var/tmp/held", "w+")
                held.write("kept")
                held.flush()
                os.unlink("/var/tmp/held")
            elif word == b"read":
                held.seek(0)
                word = held.read().encode()
            if not word:
                break
            stream.send(word)
"""


async def probe_gvisor(driver: Gvisor, state: Path, *, anew: bool = False) -> list[Probe]:
    """The rows of the table that are gVisor's own."""
    binary = await attempt("runsc", _binary, REMEDY)
    program = find_runsc()
    if not binary.works or program is None:
        return [binary]
    known = Tried(state, _DRIVER, [identity_of(program), binary.detail, processor()])
    return [binary, *await known.rows(lambda: _try(driver, state), anew=anew)]


def keeps_deleted_files(state: Path) -> bool:
    """Whether this host's gVisor was seen to keep open files that were deleted."""
    return any(probe.name == _DELETED and probe.works for probe in kept(state, _DRIVER))


async def _binary() -> str:
    found = find_runsc()
    if found is None:
        raise ProbeFailed("not found, neither by HELMR_RUNSC nor on PATH")
    if os.geteuid() != 0:
        raise ProbeFailed("gVisor keeps memory on disk for root only")
    return f"{found}, {await asyncio.to_thread(version, found)}"


async def _try(driver: Gvisor, state: Path) -> list[Probe]:
    home = Path(tempfile.mkdtemp(prefix=".probe-", dir=state))
    spec = ComputerSpec(computer=f"probe-{os.getpid()}", environment="", folder=str(home), host_base=True)
    try:
        spec = await driver.create(spec, ())
        trial = _Trial(driver, spec)
        found = [await attempt("gVisor sandbox", trial.start, "Look into launch.log, and allow user namespaces.", seconds=SECONDS)]
        if found[0].works:
            found.append(await attempt("gVisor memory on disk", trial.sleep, _OLD, seconds=SECONDS))
        if all(probe.works for probe in found):
            # No remedy: every runsc of Debian lacks it, and such a Computer sleeps by freezing.
            found.append(await attempt(_DELETED, trial.sleep_holding, "", seconds=SECONDS))
        return found
    finally:
        await asyncio.shield(driver.end(spec, None))
        await driver.destroy(spec)
        shutil.rmtree(home, ignore_errors=True)


class _Trial:
    """One small sandbox."""

    def __init__(self, driver: Gvisor, spec: ComputerSpec) -> None:
        self._driver, self._spec = driver, spec
        self._running: Running | None = None
        self._images = 0

    async def start(self) -> str:
        began = time.monotonic()
        self._running = await self._driver.start(self._spec, (PYTHON_BINARY, "-I", "-c", _RESIDENT))
        await self._ask(b"ping", b"ping")
        return f"answers by a passed stream after {time.monotonic() - began:.1f} s"

    async def sleep(self) -> str:
        began = time.monotonic()
        await self._cycle()
        await self._ask(b"ping", b"ping")
        return f"asleep, awake and answering in {time.monotonic() - began:.1f} s"

    async def sleep_holding(self) -> str:
        await self._ask(b"hold", b"hold")
        await self._cycle(careless=True)
        await self._ask(b"read", b"kept")
        return "are kept"

    async def _cycle(self, *, careless: bool = False) -> None:
        assert self._running is not None
        self._images += 1
        folder = Path(self._spec.folder) / f"memory-{self._images}"
        try:
            made = await self._driver.hibernate(self._spec, self._running, folder, careless=careless)
            await self._driver.end(self._spec, self._running)
            self._running = await self._driver.wake(self._spec, folder, made.made_by, folder.with_suffix(".used"))
        except (Unfit, NotRestored) as error:
            raise ProbeFailed(str(error).partition("\n")[0][:200]) from error

    async def _ask(self, word: bytes, wanted: bytes) -> None:
        assert self._running is not None
        try:
            stream: socket.socket = await self._driver.channel(self._spec, self._running, "stream", SECONDS)
        except RunscFailed as error:
            raise ProbeFailed(str(error)) from error
        with stream:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(stream, word)
            said = await loop.sock_recv(stream, 100)
        if said != wanted:
            raise ProbeFailed(f"it answered {said!r}")
