"""The child process of discovery: imports the agent files of a project and says what they define.

Started as `python -I -B -c ... FD`; reads `{"root", "files", "seconds"}` on standard input; writes JSON lines to the descriptor FD:
`{"importing": file}` before each file, and at the end `{"agents", "templates", "problems"}`. When its time is over it writes there where
each of its threads stands, and ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TextIO

import helmr
from helmr.protocol.manifest import AgentManifest
from helmr.protocol.wire import to_wire
from helmr.publish.describe import RuleBroken, describe_agent, describe_template
from helmr.publish.problems import Problem
from helmr.sdk.agent import AgentDefinition
from helmr.sdk.loading import load_module, module_name
from helmr.sdk.template import Template

_HELMR = str(Path(helmr.__file__).parent) + os.sep

_RULES: Final = {
    "cron": 'Write cron(id, "0 9 * * 1-5", timezone="Europe/Berlin"): minute, hour, day, month, weekday, and a zone by its IANA name.',
    "duration": 'Write a period such as "30s", "15m" or "7d", or "never" where that is allowed.',
    "hosts": 'Write egress=["example.com", "*.example.com:8443"]: hosts without scheme and path.',
    "policy": "Name operations and Agents of this project in rules of their own, or leave runtime_mcp out to inherit all.",
    "secrets": 'Write secret("NAME", env="NAME"), or with file="/an/absolute/path"; names that the runtime sets itself are taken.',
}
"""What mends a broken rule, by the module that has it, where its message alone only says what is wrong."""


@dataclass(frozen=True, slots=True)
class Found:
    """A definition, and where it can be reached."""

    value: AgentDefinition[Any, Any]
    file: str
    attribute: str


@dataclass(slots=True)
class Inspection:
    root: Path
    agents: dict[int, Found] = field(default_factory=dict[int, Found])
    templates: dict[int, tuple[Template, str]] = field(default_factory=dict[int, tuple[Template, str]])
    problems: list[Problem] = field(default_factory=list[Problem])

    def take(self, file: str) -> None:
        """Import one file and remember what it defines."""
        try:
            module = load_module(self.root, file)
        except BaseException as error:  # noqa: BLE001 - a project's code may raise anything; each is reported
            self.problems.append(import_problem(error, self.root, file))
            return
        for name, value in _members(module):
            if isinstance(value, Template):
                self.templates.setdefault(id(value), (value, file))
                continue
            known = self.agents.get(id(value))
            if known is None or (self._relative(value.defined.file) == file and known.file != file):
                self.agents[id(value)] = Found(value, file, name)
            self.templates.setdefault(id(value.template), (value.template, file))

    def report(self) -> Mapping[str, Any]:
        agents: list[AgentManifest] = []
        for found in self.agents.values():
            here = self._relative(found.value.defined.file) == found.file
            line = found.value.defined.line if here else 0
            try:
                agents.append(describe_agent(found.value, found.file, line, found.attribute))
            except RuleBroken as error:
                self.problems.append(Problem(kind="definition", file=found.file, line=line, cause=str(error)))
        templates = [self._template(template, file) for template, file in self.templates.values()]
        return {
            "agents": to_wire(agents),
            "templates": templates,
            "problems": to_wire(self.problems),
        }

    def _template(self, template: Template, file: str) -> Mapping[str, Any]:
        defined = template.defined
        inside = Path(defined.file).is_relative_to(self.root)  # a library may offer one
        place = {"file": self._relative(defined.file), "line": defined.line} if inside else {"file": file, "line": 0}
        return {**place, "template": to_wire(describe_template(template))}

    def _relative(self, file: str) -> str:
        path = Path(file)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else file


def import_problem(error: BaseException, root: Path, file: str) -> Problem:
    """What an exception of an import says: the line of the project's that led to it, and whether a rule of ours was broken."""
    place, line = file, 0
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        place, line = error.filename, error.lineno or 0
    else:
        ours = [frame for frame in frames if Path(frame.filename).is_relative_to(root)]
        if ours:
            place, line = ours[-1].filename, ours[-1].lineno or 0
    relative = Path(place).relative_to(root).as_posix() if Path(place).is_relative_to(root) else file
    by_rule = bool(frames) and frames[-1].filename.startswith(_HELMR)
    if by_rule:
        cause = getattr(error, "detail", None) or str(error)
        remedy = getattr(error, "advice", "") or _RULES.get(Path(frames[-1].filename).stem, "")
        return Problem(kind="definition", file=relative, line=line, cause=cause, remedy=remedy)
    return Problem(kind="import", file=relative, line=line, cause=_said(error), remedy=_remedy(error, file))


def _said(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}."
    text = str(error).strip()
    if not text:
        return f"{type(error).__name__}."
    return f"{type(error).__name__}: {text}" + ("" if text[-1] in ".!?" else ".")


def _remedy(error: BaseException, file: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return f"Install {top!r} beside helmr and add it to the project's dependencies, or import it inside the handler."
    if isinstance(error, SystemExit):
        return 'The file ends the process when it is imported; guard it with `if __name__ == "__main__":`.'
    if isinstance(error, ImportError) and "circular import" in str(error):
        return "Two files import each other; move what both need into a third one, whose name begins with `_`."
    if isinstance(error, PermissionError):
        return "Let yourself read it, or name it in .helmrignore."
    if isinstance(error, RecursionError):
        return "Something at its top level calls itself without an end."
    if isinstance(error, SyntaxError):
        return "Mend what Python can't read there."
    name = module_name(file)
    return f"`python -m {name}` in the project's folder shows all of its traceback." if name else "It is raised while the file is imported."


def _members(module: ModuleType) -> Iterator[tuple[str, AgentDefinition[Any, Any] | Template]]:
    for name, value in vars(module).items():
        if isinstance(value, (AgentDefinition, Template)):
            yield name, value


def main(descriptor: int) -> None:
    """Do what the module's text says."""
    task = json.load(sys.stdin)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the life of the process
    inspection = Inspection(Path(task["root"]))
    own = os.getpid()
    with open(descriptor, "w", encoding="utf-8") as report:
        faulthandler.dump_traceback_later(task["seconds"], exit=True, file=report)
        for file in task["files"]:
            _say(report, {"importing": file})
            inspection.take(file)
            if os.getpid() != own:
                os._exit(0)  # a fork that an import made, and that came back from it: one tells
        _say(report, inspection.report())
    sys.stdout.flush()
    os._exit(0)  # threads that an import started must not keep the publisher waiting


def _say(report: TextIO, message: Mapping[str, Any]) -> None:
    report.write(json.dumps(message) + "\n")
    report.flush()
