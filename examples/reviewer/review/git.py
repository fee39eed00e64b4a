"""Reading a repository: the commits and files of a range, and a checkout of its end."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from review.process import run

_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat", "LC_ALL": "C"}
_REVISIONS = re.compile(r"[A-Za-z0-9_./~^@{}-]{1,200}")
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")


class GitFailed(Exception):
    """git could not do it; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Commit:
    short: str
    subject: str


@dataclass(frozen=True, slots=True)
class Change:
    """What lies between two revisions. `lines` are the added or changed lines of each file that still exists."""

    range: str
    base: str
    head: str
    commits: tuple[Commit, ...]
    files: tuple[str, ...]
    lines: dict[str, frozenset[int]]


async def git(repository: Path, *arguments: str) -> str:
    """What a git command prints. Raises `GitFailed`."""
    argv = ["git", "-c", "safe.directory=*", "-c", "core.quotePath=false", *arguments]
    try:
        done = await run(argv, repository, env=_QUIET)
    except FileNotFoundError:
        raise GitFailed("there is no git on this Computer; install it on the host, or in the image") from None
    if done.code != 0:
        raise GitFailed(done.output.strip().splitlines()[-1] if done.output.strip() else f"git {arguments[0]} exited with {done.code}")
    return done.output


async def read_change(repository: Path, asked: str) -> Change:
    """The change that `asked` names: `A..B`, or one revision for what it changed. Raises `GitFailed` for what git doesn't know."""
    first, dots, last = asked.partition("..")
    if not asked or not all(_REVISIONS.fullmatch(name) and not name.startswith("-") for name in (first, last) if name):
        raise GitFailed("name a range of revisions, such as HEAD~3..HEAD")
    head = await _commit(repository, (last.lstrip(".") or "HEAD") if dots else first)
    base = await _commit(repository, first or "HEAD") if dots else await _parent(repository, head)
    span = ["-n", "1", head] if base == _EMPTY else [f"{base}..{head}"]
    log = await git(repository, "log", "--no-decorate", "--format=%h%x09%s", *span)
    commits = tuple(Commit(*line.split("\t", 1)) for line in log.splitlines() if "\t" in line)
    names = await git(repository, "diff", "--name-only", "--diff-filter=d", "-z", base, head)
    files = tuple(name for name in names.split("\0") if name)
    lines = _changed_lines(await git(repository, "diff", "--unified=0", "--no-color", "--no-ext-diff", "--diff-filter=d", base, head))
    return Change(f"{base[:10]}..{head[:10]}", base, head, commits, files, lines)


@asynccontextmanager
async def checked_out(repository: Path, revision: str) -> AsyncIterator[Path]:
    """A worktree of a revision beside the repository, taken away afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="review-", dir=repository.parent))
    try:
        await git(repository, "worktree", "add", "--detach", "--force", str(folder), revision)
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await git(repository, "worktree", "prune")


_EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The tree without files: the base of a first commit."""


async def _commit(repository: Path, revision: str) -> str:
    try:
        return (await git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")).strip()
    except GitFailed as error:
        raise GitFailed(f"the repository has no revision {revision}" if "exited" in str(error) else str(error)) from None


async def _parent(repository: Path, head: str) -> str:
    parents = (await git(repository, "rev-list", "--parents", "-n", "1", head)).split()
    return parents[1] if len(parents) > 1 else _EMPTY


def _changed_lines(diff: str) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/").rstrip("\t")
            found.setdefault(file, set())
        elif file and (match := _HUNK.match(line)):
            start, count = int(match[1]), int(match[2] or "1")
            found[file].update(range(start, start + count))
    return {name: frozenset(lines) for name, lines in found.items()}
