"""Finding a project's definitions, in a clean child process: the publisher's own process never runs project code. SPEC [D2]."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from helmr.protocol.errors import PublishError
from helmr.protocol.manifest import AgentManifest, TemplateManifest
from helmr.protocol.wire import from_wire
from helmr.publish.bundle import ignored, walk
from helmr.publish.child import inspect
from helmr.publish.problems import Problem, failure
from helmr.publish.project import Project

IMPORT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTemplate:
    """A Template, and where it is defined; `line` 0 where that is not known."""

    file: str
    template: TemplateManifest
    line: int = 0


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
    than `seconds` altogether, or ends the process, is one.
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
    said = await inspect(project.root, files, seconds)
    if said.report is not None:
        return said.report
    file, line = said.importing or files[0], 0
    inside = next(((Path(place), number) for place, number in said.stack if Path(place).is_relative_to(project.root)), None)
    if inside is not None:
        file, line = inside[0].relative_to(project.root).as_posix(), inside[1]
    if said.timed_out:
        cause = f"Importing the agent files took longer than {seconds:g} seconds; this one was under way."
        remedy = "Move slow work from the top level into init or turn."
    else:
        cause = f"The process ended (code {said.code}) while this file was imported."
        remedy = "Nothing at its top level may end the process."
    if said.printed:
        cause += f" It printed last: {said.printed}"
    raise failure([Problem(kind="import", file=file, line=line, cause=cause, remedy=remedy)])
