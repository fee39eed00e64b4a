"""What is wrong with a project: each problem with its file, line, cause and remedy. SPEC [D2]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from helmr.protocol.errors import DefinitionInvalid, ImportFailed, PublishError
from helmr.protocol.wire import to_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to mend. `line` 0 is the file as a whole."""

    kind: Literal["import", "definition"]
    file: str
    line: int
    cause: str
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.cause}" + (f" {self.remedy}" if self.remedy else "")


def failure(problems: Sequence[Problem]) -> PublishError:
    """The error that tells them all: `ImportFailed` when a file does not import, else `DefinitionInvalid`. `facts` has them as data."""
    kind = ImportFailed if any(problem.kind == "import" for problem in problems) else DefinitionInvalid
    ordered = sorted(problems, key=lambda problem: (problem.file, problem.line, problem.cause))
    return kind("\n".join(map(str, ordered)), problems=to_wire(tuple(ordered)))
