"""`helmr init`: a project that runs. SPEC [D1]."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from helmr.protocol.errors import PublishError
from helmr.publish.bundle import ignored, walk

BUNDLE: Final = "repo/repo.bundle"
_GIT_SECONDS: Final = 300


def init(folder: Path, *, repository: Path | None = None) -> tuple[str, ...]:
    """Write the example project `reviewer` into `folder`, which is made when missing; returns the files written, sorted.

    With `repository`, the project carries that git repository's history for its Agent to review. Nothing is overwritten: raises
    `PublishError` naming the first file in the way, or what git said.
    """
    origin = example()
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


def example() -> Path:
    """The example's folder: in the package, or beside the source in a checkout."""
    here = Path(__file__).resolve()
    for place in (here.with_name("starter"), here.parents[3] / "examples" / "reviewer"):
        if (place / "pyproject.toml").is_file():
            return place
    raise PublishError("This installation of helmr has no example project.", hint="Install it again.")


def _content(origin: Path) -> Iterator[str]:
    for relative, path in walk(origin, ignored(origin, ("*.bundle",))):
        if path.is_file():
            yield relative
