"""`helmr init`: a project that runs. SPEC [D1]."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pathspec

from helmr.protocol.errors import PublishError
from helmr.publish.bundle import walk

REVIEWER: Final = "reviewer"
TEMPLATES: Final = {
    REVIEWER: "reviews a git repository, with a typed verdict",
    "text": "takes text and answers with text",
    "schema": "takes and gives objects of a known form",
    "question": "asks a person before it acts",
    "scheduled": "starts by itself",
    "team": "two Agents, one of which may start the other",
}
"""What `helmr init` can write, each with what its Agent does."""

BUNDLE: Final = "repo/repo.bundle"
_GIT_SECONDS: Final = 300
_UNWRITTEN: Final = pathspec.GitIgnoreSpec.from_lines(["*.bundle"])


def init(folder: Path, *, template: str = REVIEWER, repository: Path | None = None) -> tuple[str, ...]:
    """Write the project that `TEMPLATES` has by the name into `folder`, which is made when missing; returns the files written, sorted.

    With `repository`, a reviewer's project carries that git repository's history for its Agent to review. Nothing is overwritten: raises
    `PublishError` naming the first file in the way, or what git said.
    """
    if repository is not None and template != REVIEWER:
        raise PublishError(f"The template {template!r} carries no repository.", hint=f"The template {REVIEWER!r} does.")
    origin = example(template)
    files = sorted(_content(origin))
    for relative in files:
        if (folder / relative).exists():
            raise PublishError(f"{folder / relative} is already there.", hint="Name another folder; nothing was written.")
    for relative in files:
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin / relative, target)
    if repository is not None:
        carry(folder, repository)
        files.append(BUNDLE)
    return tuple(sorted(files))


def carry(folder: Path, repository: Path) -> None:
    """Put a git repository's history into a project as one file, replacing an earlier one. Raises `PublishError` with what git said."""
    target = (folder / BUNDLE).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "-C", str(repository), "bundle", "create", str(target), "HEAD", "--branches", "--tags"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_GIT_SECONDS, check=False)
    except FileNotFoundError:
        raise PublishError("There is no git here to read the repository with.", hint="Install git.") from None
    if done.returncode != 0:
        raise PublishError(f"git can't bundle {repository}: {done.stderr.strip()[-500:]}")


def example(template: str = REVIEWER) -> Path:
    """The folder of a template: in the package, or beside the source in a checkout."""
    here = Path(__file__).resolve()
    examples = here.parents[3] / "examples"
    if template == REVIEWER:
        places = (here.with_name("starter"), examples / REVIEWER)
    else:
        places = (here.with_name("templates") / template, examples / "templates" / template)
    for place in places:
        if (place / "pyproject.toml").is_file():
            return place
    raise PublishError("This installation of helmr has no example project.", hint="Install it again.")


def _content(origin: Path) -> Iterator[str]:
    for relative, path in walk(origin, _UNWRITTEN):
        if path.is_file():
            yield relative
