"""Preparing the Computer: the repository to review lies at its place, whatever has been there before."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from review import sample
from review.git import GitFailed, git

BUNDLE = "repo.bundle"


@dataclass(frozen=True, slots=True)
class Workspace:
    """What `init` leaves to the Turns."""

    repository: Path
    origin: str


async def prepare(repository: Path, carried: Path) -> Workspace:
    """Clone the carried bundle, or bring an earlier clone up to date; without a bundle, make the sample repository.

    `init` runs again in each new process of the Session, on the same files: it starts from what is there.
    """
    bundle = carried / BUNDLE
    carries = await asyncio.to_thread(bundle.is_file)
    exists = await asyncio.to_thread((repository / ".git").is_dir)
    if not carries:
        if not exists:
            await sample.write(repository)
        return Workspace(repository, "sample")
    if not exists:
        await git(repository.parent, "clone", "--quiet", str(bundle), str(repository))
    else:
        await git(repository, "fetch", "--quiet", str(bundle), "HEAD")
        await git(repository, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    if not (await git(repository, "rev-list", "-n", "1", "HEAD")).strip():
        raise GitFailed("the carried repository has no commit at its HEAD")
    return Workspace(repository, "bundle")
