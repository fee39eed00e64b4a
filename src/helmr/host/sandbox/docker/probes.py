"""What a Docker engine of this host can do for Computers, found by doing it once, each step under a time-out [C2].

A container costs half a second, so what was found is kept in the state folder (`tried.py`) while the engine is set up as it was.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmr.host.sandbox import seccomp
from helmr.host.sandbox.docker import grafting
from helmr.host.sandbox.docker.engine import VARIABLE, EngineFacts
from helmr.host.sandbox.driver import ComputerSpec, Probe
from helmr.host.sandbox.identity import is_alive
from helmr.host.sandbox.interior import PYTHON_BINARY
from helmr.host.sandbox.probes import ProbeFailed, attempt
from helmr.host.sandbox.tried import Tried

if TYPE_CHECKING:
    from helmr.host.sandbox.docker.driver import Docker

SECONDS: Final = 30.0
"""Also when what a container writes doesn't arrive in the Computer's folder."""
LOOK_SECONDS: Final = 0.01
REMEDY: Final = (
    "Install and start a Docker engine of 20.10 or later that runs as root (on Debian `apt-get install docker.io`), or put the path of its "
    f"socket into {VARIABLE}."
)
STORAGE_REMEDY: Final = (
    'Set {"storage-driver": "overlay2", "features": {"containerd-snapshotter": false}} in /etc/docker/daemon.json and restart the engine: '
    "images that it has are not shown until that is undone."
)
USERS_REMEDY: Final = (
    'Set {"userns-remap": "default"} in /etc/docker/daemon.json and restart the engine: images that it has are not shown then, and '
    "Computers that were made before must be restored from their saves."
)

_RESIDENT: Final = """\
import os, time
status = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith(("Seccomp:", "NoNewPrivs:")))
hosts = open("/etc/hosts").read()
draft = "/workspace/seen.draft"
with open(draft, "w") as file:
    file.write(f"{os.getpid()} {status['Seccomp'].strip()} {status['NoNewPrivs'].strip()} {'localhost' in hosts} ")
    file.write(f"{os.stat('/etc/hosts').st_uid} {os.stat('/workspace').st_uid}")
os.rename(draft, "/workspace/seen")
while True:
    time.sleep(60)
"""


async def probe_docker(driver: Docker, state: Path, *, anew: bool = False) -> list[Probe]:
    """The rows of the table that are Docker's own."""
    facts: EngineFacts | None = None

    async def reach() -> str:
        nonlocal facts
        if os.geteuid() != 0:
            raise ProbeFailed("the docker driver needs root")
        facts = await driver.engine.facts()
        return f"answers on {driver.engine.socket}, {facts.version}"

    engine = await attempt("dockerd", reach, REMEDY)
    return [engine] if facts is None else [engine, *await _rows(driver, state, facts, anew=anew)]


async def _rows(driver: Docker, state: Path, facts: EngineFacts, *, anew: bool) -> list[Probe]:
    async def fit() -> str:
        facts.require(grafting.STORAGE)
        return f"{facts.storage}, cgroups named by {facts.cgroup_names}"

    async def mapped() -> str:
        if not facts.first_id:
            raise ProbeFailed("root in a container is root of this host, less what was taken from it")
        return f"ids from {facts.first_id} on, which all of this engine's containers share"

    async def contained() -> list[Probe]:
        return [await attempt("docker sandbox", lambda: _contain(driver, state), "Look into the engine's log.", seconds=SECONDS)]

    found = [await attempt("docker storage", fit, STORAGE_REMEDY)]
    if found[0].works:
        found += await Tried(state, "docker", [asdict(facts), str(driver.engine.socket)]).rows(contained, anew=anew)
    machine = platform.machine()
    detail = (
        f"{len(seccomp.denied_names(machine))} calls refused" if seccomp.supported(machine) else f"the engine's own: none for {machine}"
    )
    found.append(Probe(name="docker filter", works=all(probe.works for probe in found), detail=detail))
    found.append(await attempt("docker users", mapped, USERS_REMEDY))
    return found


async def _contain(driver: Docker, state: Path) -> str:
    """A whole small Computer, whose file must arrive in our folder."""
    home = Path(tempfile.mkdtemp(prefix=".probe-", dir=state))
    spec = ComputerSpec(computer=f"probe-{os.getpid()}", environment="", folder=str(home), host_base=True)
    began = time.monotonic()
    try:
        with driver.trying(spec):
            spec = await driver.create(spec, ())
            running = await driver.start(spec, (PYTHON_BINARY, "-I", "-c", _RESIDENT))
            seen = home / "disk/upper/workspace/seen"
            while not seen.is_file():
                if not is_alive(running.pid1):
                    raise ProbeFailed(f"a container did not do what it should: {await driver.ended(spec, running)}")
                await asyncio.sleep(LOOK_SECONDS)
            said = await asyncio.to_thread(seen.read_text)
            if said != "1 2 1 True 0 0":
                raise ProbeFailed(f"a container is not as it should be: {said}")
            return f"a container with the Computer's own root, in {time.monotonic() - began:.1f} s"
    finally:
        await asyncio.shield(_clear(driver, spec, home))


async def _clear(driver: Docker, spec: ComputerSpec, home: Path) -> None:
    await driver.end(spec, None)
    await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
