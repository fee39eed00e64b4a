"""What this host can do for images, found by doing it once; part of the table of `helmr doctor` [A7], [A9]."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from helmr.host.sandbox.driver import Probe
from helmr.host.sandbox.guestpython import guest_python
from helmr.host.sandbox.images.sources import ENGINE_VARIABLE, FOLDERS_VARIABLE
from helmr.host.sandbox.probes import PROBE_SECONDS, ProbeFailed, attempt
from helmr.host.sandbox.programs import ask
from helmr.host.sandbox.removal import remove_tree

COPY_SECONDS: Final = 120.0
"""A copy of Python's library takes a second, and a busy disk its time."""

_MAP: Final = f'map the names in [tool.helmr.images] to "host" or to layouts in a folder of {FOLDERS_VARIABLE}'


async def probe_images() -> list[Probe]:
    """Registries, Docker engine, folders of layouts, and the Python for images without one."""
    folders = [path for path in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if path]
    here = [path for path in folders if await asyncio.to_thread(os.path.isdir, path)]
    found = [await attempt("registries", _skopeo, f"Install skopeo, or {_MAP}.")]
    if engine := os.environ.get(ENGINE_VARIABLE):
        found.append(await attempt("Docker engine", lambda: _engine(engine), f"Start the engine, or take {ENGINE_VARIABLE} away."))
    else:
        found.append(Probe(name="Docker engine", works=False, detail=f"none is named in {ENGINE_VARIABLE}"))
    missing = [path for path in folders if path not in here]
    found.append(
        Probe(
            name="layouts and archives",
            works=bool(here) and not missing,
            detail=f"not there: {', '.join(missing)}" if missing else ", ".join(here) or f"no folder is named in {FOLDERS_VARIABLE}",
            remedy=f"Make the folders, or take them out of {FOLDERS_VARIABLE}." if missing else "",
        )
    )
    remedy = "Install the package patchelf, and the distribution's ldd."
    found.append(await attempt("Python for images without one", _python, remedy, seconds=COPY_SECONDS))
    return found


async def _skopeo() -> str:
    program = shutil.which("skopeo")
    if program is None:
        raise ProbeFailed("there is no skopeo on PATH, so nothing can be fetched from a registry")
    done = await ask(program, "--version", seconds=PROBE_SECONDS)
    if done.code != 0:
        raise ProbeFailed(f"{program} ends with {done.code}: {(done.out + done.errors).decode(errors='replace').strip()[-200:]}")
    return f"{program}, {done.out.decode(errors='replace').strip()}"


async def _engine(socket: str) -> str:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
        said = await reader.read(4096)
    finally:
        writer.close()
    if b" 200 " not in said.partition(b"\r\n")[0]:
        raise ProbeFailed(f"{socket} doesn't answer as a Docker engine does")
    return f"answers on {socket}"


async def _python() -> str:
    scratch = Path(tempfile.mkdtemp(prefix="helmr-probe-", dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None))
    try:
        made = await guest_python(scratch)
        if made == Path(sys.base_prefix):
            return "the worker's own, which needs no library but C's"
        done = await ask(str(made / "bin/python3"), "-I", "-S", "-c", "import ctypes, ssl", seconds=COPY_SECONDS, environment={})
        if done.code != 0:
            raise ProbeFailed(f"the copy doesn't run: {done.errors.decode(errors='replace').strip()[-200:]}")
        return f"a copy with {len(os.listdir(made / 'lib/helmr-libs'))} libraries beside it"
    finally:
        await asyncio.shield(asyncio.to_thread(remove_tree, scratch))
