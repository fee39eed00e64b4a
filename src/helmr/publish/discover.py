"""Finding a project's definitions, in a clean child process: the publisher's own process never runs project code. SPEC [D2]."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import helmr
from helmr.protocol.errors import PublishError
from helmr.protocol.manifest import AgentManifest, TemplateManifest
from helmr.protocol.wire import from_wire
from helmr.publish.bundle import ignored, walk
from helmr.publish.problems import Problem, failure
from helmr.publish.project import Project

IMPORT_SECONDS: Final = 60.0
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_HOME: Final = str(Path(helmr.__file__).resolve().parents[1])
_CHILD: Final = "import sys; sys.path.append({home!r}); from helmr.publish.inspection import main; main({descriptor})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTemplate:
    file: str
    template: TemplateManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What a project's files define, in the order of the files. Policies that inherit are still None, copies not yet read."""

    agents: tuple[AgentManifest, ...]
    templates: tuple[FoundTemplate, ...]
    problems: tuple[Problem, ...] = ()


def agent_files(project: Project) -> tuple[str, ...]:
    """The files that are imported, sorted: every `.py` below `dirs`, but ignored ones and those whose name begins with `_`."""
    spec = ignored(project.root, project.ignore)
    prefixes = tuple("" if folder == "." else f"{folder}/" for folder in project.dirs)
    found = (relative for relative, path in walk(project.root, spec) if relative.endswith(".py") and path.is_file())
    return tuple(sorted(file for file in found if file.startswith(prefixes) and not file.rpartition("/")[2].startswith("_")))


async def discover(project: Project, *, seconds: float = IMPORT_SECONDS) -> Discovery:
    """Import the agent files and read their definitions.

    Raises `ImportFailed` or `DefinitionInvalid` telling every problem with file, line, cause and remedy; an import that takes longer
    than `seconds` altogether, or ends the process, is one. No environment variable of the caller but a few neutral ones is passed on.
    """
    files = await asyncio.to_thread(agent_files, project)
    if not files:
        raise PublishError(f"The project has no Python file below {', '.join(project.dirs)}.", hint="`helmr init` writes an example.")
    result = await _inspect(project, files, seconds)
    found = from_wire(Discovery, result)
    if found.problems:
        raise failure(found.problems)
    if not found.agents:
        raise PublishError("The project defines no Agent.", hint="Define one with agent(...) at the top level of a file.")
    return found


async def _inspect(project: Project, files: tuple[str, ...], seconds: float) -> Mapping[str, Any]:
    reading, writing = os.pipe()
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-B", "-c", _CHILD.format(home=_HOME, descriptor=writing)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=project.root,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            pass_fds=(writing,),
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    task = json.dumps({"root": str(project.root), "files": files}).encode()
    try:
        async with asyncio.timeout(seconds):
            said, (printed, _) = await asyncio.gather(_read_all(reading), child.communicate(task))
    except TimeoutError:
        raise PublishError(
            f"Importing the agent files took longer than {seconds:g} seconds.", hint="Move slow work from the top level into init or turn."
        ) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    lines = said.splitlines()
    last: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if "agents" not in last:
        tail = " ".join(printed.decode(errors="replace").split()[-40:])
        file = str(last.get("importing", files[0]))
        cause = f"The process ended (code {child.returncode}) while this file was imported. {tail}".rstrip()
        raise failure([Problem(kind="import", file=file, line=0, cause=cause)])
    return last


async def _read_all(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0))
    try:
        return await reader.read()
    finally:
        transport.close()
