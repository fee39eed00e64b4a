"""What a project's code needs installed: locked where it can be. SPEC [D2]."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from helmr.protocol.errors import PublishError
from helmr.publish.bundle import opened
from helmr.publish.project import Project

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_EXPORT_SECONDS: Final = 60


def requirements_of(project: Project) -> tuple[str, ...]:
    """The requirements of the layer that every image of the project gets, sorted; none with `deps = false`.

    From `uv.lock`, else `requirements.txt`, else `[project].dependencies`. helmr itself is left out: every Computer has it. Raises
    `PublishError` for a lock that can't be read and for requirements that name files of this machine.
    """
    if not project.deps:
        return ()
    if (project.root / "uv.lock").is_file():
        found = _lines(_exported(project.root), "uv.lock", project.root)
    elif os.path.lexists(file := project.root / "requirements.txt"):
        found = _lines(_text(file, file.name), file.name, project.root)
    else:
        found = iter(project.dependencies)
    return tuple(sorted({text for text in found if _project_name(text) != "helmr"}))


def _exported(root: Path) -> str:
    uv = shutil.which("uv")
    if uv is None:
        raise PublishError(
            "The project has a uv.lock, and there is no uv here to read it.",
            hint="Install uv, or write requirements.txt and take uv.lock away, or set deps = false in [tool.helmr].",
        )
    command = [uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--no-hashes", "--no-header", "--no-annotate"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, encoding="utf-8", errors="replace", timeout=_EXPORT_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise PublishError(
            f"uv took longer than {_EXPORT_SECONDS} seconds to read uv.lock.", hint="Run `uv export --frozen` in the project to see why."
        ) from None
    except OSError as error:
        raise PublishError(f"uv can't be run to read uv.lock: {error.strerror}.", hint="Install uv anew.") from None
    if done.returncode != 0:
        raise PublishError(f"uv can't read uv.lock: {done.stderr.strip()[-500:]}", hint="Run `uv lock`.")
    return done.stdout


def _text(file: Path, shown: str) -> str:
    with opened(file, shown) as content:
        try:
            return content.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise PublishError(f"{shown}:{line}: This is no UTF-8.", hint="Save the file as UTF-8.") from None


def _lines(text: str, file: str, folder: Path, seen: frozenset[Path] = frozenset()) -> Iterator[str]:
    joined = text.replace("\\\r\n", " ").replace("\\\n", " ")
    for number, line in enumerate(joined.splitlines(), 1):
        requirement = re.sub(r"(^|\s)#.*$", "", line).strip()
        requirement = re.sub(r"\s--hash=\S+", "", requirement).strip()
        if not requirement:
            continue
        if match := re.fullmatch(r"(?:-r|--requirement)[ =]\s*(\S+)", requirement):
            other = (folder / match[1]).resolve()
            if other in seen or not other.is_file():
                raise PublishError(f"{file}:{number}: {match[1]!r} can't be read.", hint="Name a file that is there, once.")
            yield from _lines(_text(other, match[1]), match[1], other.parent, seen | {other})
        elif not _NAME.match(requirement) or requirement.startswith((".", "/")):
            raise PublishError(
                f"{file}:{number}: {requirement!r} is no requirement that an image can install.",
                hint="Name packages of a registry; registries themselves are the operator's setting.",
            )
        else:
            yield requirement


def _project_name(requirement: str) -> str:
    match = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""
